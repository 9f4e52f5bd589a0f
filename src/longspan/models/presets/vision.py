"""Vision models with heads for the 1000 classes of ImageNet, which their parameter counts include."""

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
    options={**_VIT.options, "dropout": 0.0, "init": "normal", "drop_path": 0.1},
    lengths=(197,),
    remarks="without the distillation token",
)
_DISTILLED = Preset(
    model="vit",
    paper="Touvron et al. 2020",
    options={**_DEIT.options, "distillation": True},
    lengths=(198,),
    remarks="with the distillation token and its head",
)

_CLASSES = {"tasks": [{"task": "classify", "labels": 1000, "dropout": 0.0}]}
_IMAGE = Preset(
    model="image_decoder",
    paper="Parmar et al. 2018",
    options=sizes(12, 512, 4, 2048),
    remarks="local attention in one dimension; `block` and image_local's options make it two-dimensional",
)
_AXIAL = Preset(
    model="axial_transformer",
    paper="Ho et al. 2019",
    options={"width": 1536, "heads": 16, "exterior_layers": 8, "outer_layers": 8, "inner_layers": 8},
    remarks="the released sizes",
)
_TABLE = Preset(
    model="table_transformer",
    paper="Gorishniy et al. 2021",
    options={
        **sizes(3, 192, 8, 256),
        "columns": [
            {"name": name}
            for name in (
                "MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude", "Longitude"
            )
        ],
        "target": {"name": "MedHouseVal"},
        "tasks": [{"task": "regress", "labels": 1, "dropout": 0.0}],
    },
    exact=896_833,
    lengths=(9,),
    remarks="FT-Transformer with the default sizes, for the eight columns of California Housing",
)  # fmt: skip
_SET = Preset(
    model="set_transformer",
    paper="Lee et al. 2019",
    options={"features": 2, "seeds": 4, "outputs": 5},
    lengths=(500,),
    remarks="amortised clustering: four clusters of points in the plane",
)
_PERCEIVER = Preset(
    model="perceiver",
    paper="Jaegle et al. 2021",
    options=_CLASSES,
    lengths=(224 * 224,),
)
_RESNET = Preset(
    model="resnet",
    paper="He et al. 2016",
    options=_CLASSES,
    lengths=(224 * 224,),
    remarks="with the stride in the 3 × 3 layer (v1.5), as torchvision's",
)
_STANDALONE = Preset(
    model="resnet",
    paper="Ramachandran et al. 2019",
    options={**_CLASSES, "spatial": ("attention",) * 4},
    lengths=(224 * 224,),
    remarks="dense projections: the paper's text groups them by head, its parameter count does not",
)
_NONLOCAL = Preset(
    model="resnet",
    paper="Wang et al. 2018",
    options=_CLASSES,
    lengths=(224 * 224,),
    remarks="for images; the paper's are for videos, with the same blocks",
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
    **rows(
        _DISTILLED,
        {
            "deit-tiny-distilled": {"options": sizes(12, 192, 3), "parameters": "6M", "exact": 5_910_800},
            "deit-small-distilled": {"options": sizes(12, 384, 6), "parameters": "22M", "exact": 22_436_432},
            "deit-base-distilled": {"options": sizes(12, 768, 12), "parameters": "87M", "exact": 87_338_192},
        },
    ),
    **rows(
        _IMAGE,
        {
            "image-transformer": {
                "options": {"attention": [{"name": "image_local", "query_block": 256, "memory": 256}]},
                "lengths": (3072,),
            },
            "image-transformer-dmol": {
                "options": {
                    **sizes(12, 256, 8, 512),
                    "dropout": 0.1,
                    "output": "mixture",
                    "attention": [{"name": "image_local", "query_block": 256, "memory": 256}],
                },
                "lengths": (1024,),
            },
        },
    ),
    **rows(
        _AXIAL,
        {
            "axial-imagenet-32": {"exact": 341_178_112, "lengths": (1024,)},
            "axial-imagenet-64": {
                "options": {"width": 2048, "dropout": 0.0, "image_size": 64},
                "exact": 606_161_152,
                "lengths": (4096,),
            },
        },
    ),
    "ft-transformer": _TABLE,
    "set-transformer": _SET,
    **rows(
        _PERCEIVER,
        {
            "perceiver-imagenet": {"parameters": "44.9M", "exact": 44_912_254},
            "perceiver-unshared": {"options": {"shared": False}, "parameters": "326.2M", "exact": 326_241_856},
        },
    ),
    **rows(
        _RESNET,
        {
            "resnet-18": {"options": {"blocks": (2, 2, 2, 2), "bottleneck": False}, "exact": 11_689_512},
            "resnet-50": {"exact": 25_557_032},
        },
    ),
    **rows(
        _STANDALONE,
        {
            "resnet-50-standalone": {"parameters": "18.0M", "exact": 18_038_632},
            "resnet-50-attention": {"options": {"stem": "attention"}, "exact": 18_030_472},
        },
    ),
    **rows(
        _NONLOCAL,
        {
            "resnet-50-nonlocal-1": {"options": {"nonlocal_blocks": (0, 0, 1, 0)}, "exact": 27_658_792},
            "resnet-50-nonlocal-5": {"options": {"nonlocal_blocks": (0, 2, 3, 0)}, "exact": 32_915_496},
        },
    ),
}
