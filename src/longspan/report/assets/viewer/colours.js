// Colour of weights: one hue for weights, blue and red for both signs; even steps of lightness.

const RAMPS = {
  light: { up: ["#fdfdfc", "#c6dcf0", "#7fb2dc", "#3181c4", "#0d5199", "#08285c"],
    down: ["#fdfdfc", "#f4cdc4", "#e89a8a", "#d25f4f", "#a8281f", "#5f0d0b"] },
  dark: { up: ["#15171a", "#17314c", "#1f5688", "#3a86c8", "#82bdf0", "#eef7ff"],
    down: ["#15171a", "#4a211d", "#87352c", "#c65848", "#f0a193", "#fff1ee"] },
};
const bytesOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function ramp(stops, share) {
  const place = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const [from, to] = [bytesOf(stops[index]), bytesOf(stops[index + 1])];
  return from.map((byte, channel) => Math.round(byte + (to[channel] - byte) * (place - index)));
}

// 256 colours for codes, as one number each in the order of a canvas.
class Palette {
  constructor(source, contrast) {
    const { up, down } = RAMPS[isDark() ? "dark" : "light"];
    const even = source.signed || source.minus ? 0 : Math.min(1, 3 / source.columns);
      // a map that is even should look pale
    const high = Math.max(1e-9, source.largest / source.scale, even / source.scale);
    let low = 0.5 / source.columns / source.scale;
    if (low > high / 8) low = high / 30;
    this.low = low * source.scale;
    this.high = high * source.scale;
    this.contrast = contrast;
    this.up = this.table(up, low, high);
    this.down = this.table(down, low, high);
  }
  share(size, low = this.low, high = this.high) {
    if (!(size > 0)) return 0;
    if (this.contrast === "linear") return size / high;
    return Math.log(size / low) / Math.log(high / low);
  }
  table(stops, low, high) {
    const colours = new Uint32Array(256);
    for (let code = 0; code < 256; code++) {
      const [red, green, blue] = ramp(stops, this.share(DECODED[code], low, high));
      colours[code] = (255 << 24) | (blue << 16) | (green << 8) | red;
    }
    return colours;
  }
}

// The picture of a level, in cells.
function levelSheet(level, palette, pooling) {
  const sheet = new OffscreenCanvas(level.columns, level.rows);
  const image = new ImageData(level.columns, level.rows);
  const pixels = new Uint32Array(image.data.buffer);
  const codes = pooling === "mean" ? level.mean : level.max;
  const { low } = level;
  for (let place = 0; place < pixels.length; place++) {
    const negative = low && low[place] > level.max[place];
    pixels[place] = negative ? palette.down[pooling === "mean" ? codes[place] : low[place]] : palette.up[codes[place]];
  }
  sheet.getContext("2d").putImageData(image, 0, 0);
  return sheet;
}

// The picture of weights that were computed.
function weightSheet(weights, rows, columns, palette, scale) {
  const sheet = new OffscreenCanvas(columns, rows);
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let place = 0; place < pixels.length; place++) {
    const weight = weights[place];
    pixels[place] = weight < 0 ? palette.down[codeOf(-weight / scale)] : palette.up[codeOf(weight / scale)];
  }
  sheet.getContext("2d").putImageData(image, 0, 0);
  return sheet;
}
