"""Audit a pretrained timm model on your images: python audit_timm.py FOLDER [MODEL]. Needs timm and torchvision."""

import sys

import robattr

try:
    import timm
except (ImportError, RuntimeError) as missing:  # RuntimeError: torchvision for another build of torch
    print(f"skipped: timm cannot be imported ({missing}): pip install timm torchvision")
    sys.exit(0)

if len(sys.argv) < 2:
    sys.exit("usage: python audit_timm.py FOLDER [MODEL]; FOLDER has a folder of images for each class")
name = sys.argv[2] if len(sys.argv) > 2 else "resnet18"
net = timm.create_model(name, pretrained=True)
config = timm.data.resolve_model_data_config(net)

# The class folders must be named as the model's outputs are; ImageNet's are its synset ids (n01440764, ...).
synsets = timm.data.ImageNetInfo().label_names()
found = robattr.audit(
    net, sys.argv[1], size=config["input_size"][-1], preprocessing={"mean": config["mean"], "std": config["std"]},
    eps=8 / 255, maps="ig,captum:Saliency", classes=synsets, examples=50, name=name, out=f"audit-{name}.html",
)  # fmt: skip
print(found.verdict.headline)
print("wrote", found.page)
