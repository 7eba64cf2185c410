"""From a table or figure of the paper to the runs it needs: train what is missing, evaluate, render."""
