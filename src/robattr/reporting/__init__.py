"""Renderings of evaluated runs: records, tables, publication figures and one self-contained HTML page."""

from typing import TYPE_CHECKING

from robattr._lazy import lazy

if TYPE_CHECKING:
    from robattr.reporting.export import write_records as write_records
    from robattr.reporting.figures import write_figures as write_figures
    from robattr.reporting.html import write_page as write_page
    from robattr.reporting.model_card import model_card as model_card
    from robattr.reporting.run_results import read_run as read_run
    from robattr.reporting.run_results import read_runs as read_runs

lazy(
    __name__,
    export="write_records",
    figures="write_figures",
    html="write_page",
    model_card="model_card",
    run_results="read_run read_runs",
)
