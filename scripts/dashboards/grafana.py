"""Makes Grafana's JSON of a dashboard, with the builders of Grafana's Foundation SDK."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    dashboard,
    heatmap,
    prometheus,
    stat,
    timeseries,
)
from grafana_foundation_sdk.builders import common as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    GridPos,
    Threshold,
    ThresholdsMode,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.panels import Board, Panel

_SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
_ALL = VariableOption(text="All", value="$__all", selected=True)
_BUILDERS: dict[str, Any] = {
    "lines": timeseries.Panel,
    "areas": timeseries.Panel,
    "number": stat.Panel,
    "bars": bargauge.Panel,
    "heatmap": heatmap.Panel,
}
_FULL, _LINE, _HEIGHT, _HEIGHT_OF_NUMBERS = 24, 3, 8, 5
#: The choices at the top of dashboards about jobs: a variable, the label, and what narrows it.
_CHOICES = (
    ("project", "project", ""),
    ("pool", "pool", 'project=~"$project"'),
    ("class", "class", 'project=~"$project"'),
    ("job", "phalanx_job", 'project=~"$project", pool=~"$pool", class=~"$class"'),
)


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color="green")]
    if panel.red_below is not None:
        steps = [Threshold(None, "red"), Threshold(panel.red_below, "green")]
    if panel.red_above is not None:
        steps.append(Threshold(value=panel.red_above, color="red"))
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _panel(panel: Panel) -> Any:
    made = _BUILDERS[panel.kind]().title(panel.title).description(panel.text).datasource(_SOURCE)
    for at, (query, legend) in enumerate(panel.queries):
        target = prometheus.Dataquery().ref_id(chr(ord("A") + at)).expr(query).legend_format(legend)
        if panel.kind == "heatmap":
            target.format("heatmap")
        made.with_target(target.range().datasource(_SOURCE))
    if panel.kind == "heatmap":
        made.calculate(False).y_axis(heatmap.YAxisConfig().unit(panel.unit))
    else:
        made.unit(panel.unit).min(0 if panel.most is not None else None)
        made.max(panel.most)
        made.thresholds(_thresholds(panel))
    link = dashboard.DashboardLink("Open in Phalanx").type(DashboardLinkType.LINK)
    made.data_links([link.url("${url}" + panel.link).target_blank(True)])
    if panel.kind in ("lines", "areas"):
        made.fill_opacity(30 if panel.kind == "areas" else 8).line_width(1)
        made.legend(builders.VizLegendOptions().show_legend(True))
        if panel.kind == "areas":
            mode = common.StackingMode.NORMAL
            made.stacking(builders.StackingConfig().mode(mode).group("A"))
        elif panel.red_above is not None or panel.red_below is not None:
            mode = common.GraphThresholdsStyleMode.DASHED
            made.thresholds_style(builders.GraphThresholdsStyleConfig().mode(mode))
    elif panel.kind in ("number", "bars"):
        made.reduce_options(builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    return made


def _lines(panels: tuple[Panel, ...]) -> list[tuple[Panel, ...]]:
    """The panels of a row in lines of three, the last two lines of two where one would be left."""
    found, rest = [], panels
    while rest:
        size = 2 if len(rest) in (2, 4) else _LINE
        found.append(rest[:size])
        rest = rest[size:]
    return found


def _choice(name: str, label: str, narrowed: str) -> dashboard.QueryVariable:
    series = f"phalanx_job_info{{{narrowed}}}" if narrowed else "phalanx_job_info"
    made = dashboard.QueryVariable(name).label(name).datasource(_SOURCE)
    made.query(f"label_values({series}, {label})").current(_ALL)
    made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.NATURAL_ASC)
    if name != "job":  # all, those of jobs without a pool included
        made.all_value(".*")
    return made.multi(True).include_all(True)


def _of_projects() -> dashboard.QueryVariable:
    """The projects that have cost something, ended jobs included."""
    made = _choice("project", "project", "")
    return made.query("label_values(phalanx_slot_seconds_total, project)")


def _of_classes() -> dashboard.QueryVariable:
    """The classes that jobs have ended in, or may."""
    made = _choice("class", "class", "")
    return made.query("label_values(phalanx_class_jobs_ended_total, class)")


def _uses(board: Board, variable: str) -> bool:
    queries = (query for _, row in board.rows for one in row for query, _ in one.queries)
    return any(f"${variable}" in query for query in queries)


def as_json(board: Board, others: tuple[Board, ...]) -> str:
    """The text of the JSON file of one dashboard, with links to the others."""
    made = dashboard.Dashboard(board.title).uid(board.uid).description(board.text)
    made.tags(list(board.tags)).time(board.window, "now").refresh("30s").timezone("browser")
    made.tooltip(DashboardCursorSync.CROSSHAIR)
    source = dashboard.DatasourceVariable("datasource").label("datasource").type("prometheus")
    made.with_variable(source)
    if board.of_jobs:
        for one in _CHOICES:
            made.with_variable(_choice(*one))
    else:
        for name, variable in (("project", _of_projects), ("class", _of_classes)):
            if _uses(board, name):
                made.with_variable(variable())
    address = dashboard.TextBoxVariable("url").label("address of Phalanx")
    address.description("Links of panels begin with it: the setting `api.public_url`.")
    made.with_variable(address.default_value("http://localhost:7000").hide(VariableHide.DONT_HIDE))
    for other in others:
        link = dashboard.DashboardLink(other.title.removeprefix("Phalanx: "))
        link.type(DashboardLinkType.LINK).url(f"/d/{other.uid}").keep_time(True)
        made.link(link.include_vars(other.of_jobs and board.of_jobs))
    top = 0
    for title, panels in board.rows:
        made.with_row(dashboard.Row(title).grid_pos(GridPos(h=1, w=_FULL, x=0, y=top)))
        top += 1
        for line in _lines(panels):
            width = _FULL // len(line)
            numbers = all(one.kind == "number" for one in line)
            height = _HEIGHT_OF_NUMBERS if numbers else _HEIGHT
            for at, panel in enumerate(line):
                place = GridPos(h=height, w=width, x=at * width, y=top)
                made.with_panel(_panel(panel).grid_pos(place))
            top += height
    built = made.build()
    for number, one in enumerate(built.panels or (), start=1):
        one.id_val = number
    return json.dumps(built, cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
