"""``mrl tokens audit``: what moving text from A's policy to B's costs, as tables and a picture."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from bandit import Residual
from mrl.errors import InputError
from mrl.tokens import plots
from mrl.tokens.audit import TokenAudit, audit
from mrl.tokens.residual import LARGE, LEVELS
from mrl.tokens.retokenization import INVALID_UTF8, ContentEncoder
from mrl.tokens.run_rollouts import RunRollouts, run_config, run_rollouts
from mrl.tokens.sources import Texts, encoder_of, file_texts, shipped_texts

FIGURES = ("png", "svg")
SIZES = 8  # rows of the table of block sizes


def run_audit(
    a: str,
    b: str,
    /,
    *,
    output: Path,
    text: Path | None = None,
    run: Path | None = None,
    console: Console | None = None,
) -> TokenAudit:
    """Audit two tokenizers, print what it costs, and write tables and a picture.

    Parameters
    ----------
    a, b : str
        Source and receiver; see `mrl.tokens.sources.encoder_of`. With `run` also names of its
        policies.
    output : Path
        Folder; gets ``audit.csv`` (all figures, a row each), ``blocks.csv``, ``texts.csv``,
        ``rollouts.csv`` (with `run`), ``audit.png`` and ``audit.svg``.
    text : Path, optional
        A text file. Default: `shipped_texts`.
    run : Path, optional
        Folder of a run that kept its exchange: A's rollouts there are the texts.
    console : rich.console.Console, optional
        Where tables and progress are shown; default: nowhere.

    Raises
    ------
    InputError
        If a tokenizer, text or run cannot be read, or `output` cannot be written.
    """
    if text is not None and run is not None:
        raise InputError("got --text and --rollouts; expected one of them")
    console = console or Console(quiet=True)
    policies = () if run is None else run_config(run).policies
    read = None if text is None else file_texts(text)
    with console.status("reading tokenizers"):
        encoder_a, encoder_b = encoder_of(a, policies), encoder_of(b, policies)
    rollouts = None if run is None else run_rollouts(run, a, encoder_a)
    texts = read or (shipped_texts() if rollouts is None else _texts_of(rollouts))
    try:
        output.mkdir(parents=True, exist_ok=True)
        with _bar(console, len(texts.texts)) as advance:
            report = audit(
                encoder_a,
                encoder_b,
                texts.texts,
                None if rollouts is None else rollouts.records,
                kinds=texts.kinds,
                progress=advance,
            )
        measured = {} if rollouts is None else dict(rollouts.measured)
        figures = tidy(report, measured)
        _write(figures, report, measured, (_short(a), _short(b)), output)
    except OSError as error:
        raise InputError(
            f"cannot write to {output}: {error.strerror}; give a folder with -o"
        ) from None
    for side, name, encoder in (("A", a, encoder_a), ("B", b, encoder_b)):
        console.print(_described(side, name, encoder), markup=False, soft_wrap=True)
    _show(figures, report, texts, console)
    _suggest(report, console)
    console.print(f"tables and picture written to {output}", soft_wrap=True)
    return report


def tidy(report: TokenAudit, measured: Mapping[str, float], /) -> pd.DataFrame:
    """Every figure of an audit in a row: ``quantity``, ``kind`` (of text or reason), ``value``.

    Parameters
    ----------
    report : TokenAudit
        The audit.
    measured : mapping of str to float
        What the source's trainer measured of its residual; see `RunRollouts.measured`. Its
        canonical share is that of the whole round, and is not repeated here.
    """
    rows = [("one_to_one_share", "all", report.one_to_one_share)]
    for row in report.by_kind.to_dict("records"):
        kind = row.pop("kind")
        rows += [(str(quantity), kind, float(value)) for quantity, value in row.items()]
    rows.append(("refused_share", "all", report.refused_share))
    rows += [
        (f"refused_share_{row['side']}", row["reason"], float(row["share"]))
        for row in report.refused.to_dict("records")
    ]
    if len(report.rollouts):
        rows.append(("rollouts", "all", len(report.rollouts)))
        rows.append(("canonical_share", "all", report.canonical_share))
        rows.append(("gated_share", "all", report.gated_share))
    rows += [(key, "all", value) for key, value in measured.items() if key != "canonical_share"]
    return pd.DataFrame(rows, columns=["quantity", "kind", "value"])


def _texts_of(rollouts: RunRollouts, /) -> Texts:
    found = tuple(record.text for record in rollouts.records)
    return Texts(found, ("rollouts",) * len(found), rollouts.about)


@contextmanager
def _bar(console: Console, total: int, /) -> Iterator[Callable[[int], None]]:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("audit", total=total)
        yield lambda done: progress.update(task, completed=done)


def _short(name: str, /) -> str:
    path = Path(name)
    return path.parent.name if path.name in ("tokenizer.json", "tekken.json") else path.name


def _described(side: str, name: str, encoder: ContentEncoder, /) -> str:
    table = encoder.table
    losses = "; ".join(table.losses) or "no text that it cannot keep"
    return f"{side}  {name}: {table.family}, {len(table):,} ids; {losses}"


def _write(
    figures: pd.DataFrame,
    report: TokenAudit,
    measured: Mapping[str, float],
    names: tuple[str, str],
    output: Path,
    /,
) -> None:
    source, receiver = names
    figures.assign(source=source, receiver=receiver).to_csv(output / "audit.csv", index=False)
    report.blocks.to_csv(output / "blocks.csv", index=False)
    report.texts.to_csv(output / "texts.csv", index=False)
    if len(report.rollouts):
        report.rollouts.to_csv(output / "rollouts.csv", index=False)
    quantiles = {
        level: measured[key]
        for level in LEVELS
        if (key := f"residual_q{level:.0%}"[:-1]) in measured
    }
    number = measured.get("residual_rollouts")
    picture = plots.audit(
        report,
        source=source,
        receiver=receiver,
        residual=quantiles or None,
        number=None if number is None else int(number),
    )
    for kind in FIGURES:
        picture.savefig(output / f"audit.{kind}", dpi=200)


def _show(figures: pd.DataFrame, report: TokenAudit, texts: Texts, console: Console, /) -> None:
    console.print(f"text: {texts.about}", markup=False, soft_wrap=True)
    table = Table("kind", "texts", "bytes", "blocks", "1:1 blocks", "refused by B")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in report.by_kind.to_dict("records"):
        counts = (f"{row[column]:,}" for column in ("texts", "bytes", "blocks"))
        shares = (_percent(row[column]) for column in ("one_to_one_share", "refused_share"))
        table.add_row(escape(row["kind"]), *counts, *shares)
    console.print(table)
    if len(report.refused):
        table = Table("refused by", "reason", "texts", "share")
        for row in report.refused.to_dict("records"):
            table.add_row(
                row["side"].upper(), row["reason"], f"{row['texts']:,}", _percent(row["share"])
            )
        console.print(table)
    sizes = Table("block, tokens of A:B", "blocks", "share")
    for row in report.blocks.head(SIZES).to_dict("records"):
        shape = f"{row['tokens_a']}:{row['tokens_b']}"
        sizes.add_row(shape, f"{row['blocks']:,}", _percent(row["share"]))
    rest = report.blocks.iloc[SIZES:]
    if len(rest):
        sizes.add_row("others", f"{rest['blocks'].sum():,}", _percent(rest["share"].sum()))
    console.print(sizes)
    _show_rollouts(figures, console)


def _show_rollouts(figures: pd.DataFrame, console: Console, /) -> None:
    values = figures[figures["kind"] == "all"].set_index("quantity")["value"]
    if "rollouts" not in values:
        console.print(
            "rollouts: none; canonical share and residual need those of A's policy (--rollouts)"
        )
        return
    table = Table(f"{values['rollouts']:,.0f} rollouts of A", "")
    table.add_row("canonical", _percent(values["canonical_share"]))
    table.add_row("refused by B", _percent(values["refused_share"]))
    table.add_row("not canonical, of those B can write", _percent(values["gated_share"]))
    for level in LEVELS:
        key = f"residual_q{level:.0%}"[:-1]
        if key in values:
            table.add_row(f"|residual|, {level:.0%} quantile", f"{values[key]:.3g} nats")
    if "residual_above_5_nats" in values:
        table.add_row(f"|residual| above {LARGE:g} nats", _percent(values["residual_above_5_nats"]))
    console.print(table)
    if "residual_rollouts" not in values:
        console.print("residual: the run's metrics hold none (exchange.residual_sample)")
    else:
        count = f"{values['residual_rollouts']:.0f}"
        console.print(f"residual: measured by the trainer in the newest round, {count} rollouts")


def _suggest(report: TokenAudit, console: Console, /) -> None:
    """Print the bandit's residual of a gated rule as a line of Python and of a study file."""
    try:
        found = report.suggested_residual()
    except ValueError:
        utf8 = (report.texts["refused_a"] != INVALID_UTF8).any()
        why = "" if utf8 else "; none of them is UTF-8, which is what is read"
        console.print(f"no residual suggested: A can write none of the texts itself{why}")
        return
    values = {name: float(getattr(found, name)) for name in ("mu", "sigma", "drop", "gate")}
    code = ", ".join(f"{name}={value:.4g}" for name, value in values.items())
    section = ", ".join(f"{name}: {value:.4g}" for name, value in values.items())
    gate = "" if len(report.rollouts) else "; gate is not measured without rollouts"
    console.print(
        f"suggested for a gated ratio (what passes the gate has no residual{gate}):",
        markup=False,
        soft_wrap=True,
    )
    console.print(f"  {Residual.__name__}({code})", markup=False, soft_wrap=True)
    console.print(f"  residual: {{{section}}}", markup=False, soft_wrap=True)


def _percent(share: float, /) -> str:
    return "-" if share != share else f"{share:.2%}"
