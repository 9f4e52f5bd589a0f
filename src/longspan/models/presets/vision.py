"""Vision Transformers with heads for the 1000 classes of ImageNet, which their parameter counts include."""

from longspan.models.presets.row import Preset, rows, sizes

_VIT = Preset(
    model="vit",
    paper="Dosovitskiy et al. 2021",
    options={"tasks": [{"task": "classify", "labels": 1000, "dropout": 0.0}]},
    lengths=(197,),
    remarks="for 224 × 224 pixels, fine-tuned for 1000 classes; the released code uses the tanh form of GELU",
)
_DEIT = Preset(
    model="vit",
    paper="Touvron et al. 2020",
    options={**_VIT.options, "dropout": 0.0, "init": "normal"},
    lengths=(197,),
    remarks="without the distillation token and without drop-path",
)

ROWS: dict[str, Preset] = {
    **rows(
        _VIT,
        {
            "vit-small-16": {
                "options": sizes(12, 384, 6),
                "exact": 22_050_664,
                "remarks": f"{_VIT.remarks}; the size is from a later paper of its authors (Steiner et al. 2021)",
            },
            "vit-base-16": {"options": sizes(12, 768, 12), "parameters": "86M", "exact": 86_567_656},
            "vit-base-32": {
                "options": {**sizes(12, 768, 12), "patch_size": 32},
                "exact": 88_224_232,
                "lengths": (50,),
            },
            "vit-large-16": {"options": sizes(24, 1024, 16), "parameters": "307M", "exact": 304_326_632},
            "vit-huge-14": {
                "options": {**sizes(32, 1280, 16), "patch_size": 14},
                "parameters": "632M",
                "exact": 632_045_800,
                "lengths": (257,),
            },
        },
    ),
    **rows(
        _DEIT,
        {
            "deit-tiny": {"options": sizes(12, 192, 3), "parameters": "5M", "exact": 5_717_416},
            "deit-small": {"options": sizes(12, 384, 6), "parameters": "22M", "exact": 22_050_664},
            "deit-base": {"options": sizes(12, 768, 12), "parameters": "86M", "exact": 86_567_656},
        },
    ),
}
