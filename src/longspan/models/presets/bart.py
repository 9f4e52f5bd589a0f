"""BART: the Transformer with a table of positions, trained to restore texts."""

from longspan.models.presets.row import BART, Preset, rows, sizes

_BART = Preset(
    model="transformer",
    paper="Lewis et al. 2020",
    options={**BART, "position_offset": 2, "padding": 1},
    lengths=(1024,),
    remarks="two unused rows before the 1024 positions of each side; source, target and output share one matrix",
)

ROWS: dict[str, Preset] = rows(
    _BART,
    {
        "bart-base": {"options": sizes(6, 768, 12), "exact": 139_420_416},
        "bart-large": {"options": sizes(12, 1024, 16), "exact": 406_291_456},
    },
)
