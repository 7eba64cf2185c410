"""Reproduce a table or figure of the paper: train the missing runs, evaluate them, collect the results.

    made = robattr.reproduce.jobs("table1", Path("runs/paper"), datasets=["mnist"])
    robattr.reproduce.execute(robattr.reproduce.tasks(made))
    robattr.reproduce.results(made)

A second call continues where the first was stopped.
"""

from robattr.reproduce.execution import execute as execute
from robattr.reproduce.execution import execute_parallel as execute_parallel
from robattr.reproduce.execution import run_parallel as run_parallel
from robattr.reproduce.plan import TARGETS as TARGETS
from robattr.reproduce.plan import Job as Job
from robattr.reproduce.plan import jobs as jobs
from robattr.reproduce.plan import results as results
from robattr.reproduce.plan import tasks as tasks
