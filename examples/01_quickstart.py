"""Forge a robust model and audit whether that made it harder to fool; the report is runs/example/report.html."""

import lipforge as lf

model = lf.load_model("cifar10-resnet")
lf.forge_(model, lf.load_data("cifar10-sample:train"), mask=lf.Step(), ratio=2**-6)

test, threat = lf.load_data("cifar10-sample:test", limit=8), lf.Threat("linf", "8/255")
with lf.RunDir.open("runs/example") as run:  # an interrupted script resumes from its run directory
    report = lf.audit(model, test, threat, run=run, name="cifar10-resnet, Step at 2^-6")
print(report)
print("wrote", lf.write_report("runs/example"))
