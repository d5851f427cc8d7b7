// A picture that paints itself: too dense for a chart, or of another form.

import { type Area, fitted, FONT, RIGHT, toPixels, written } from "./axis.ts";
import { ink } from "./colours.ts";
import { h } from "./dom.ts";
import { type Content, Figure, type Options } from "./figure.ts";

export interface Picture extends Content {
  draw(g: CanvasRenderingContext2D, area: Area): void;
  /** Draws no axes, as for a map. */
  plain?: boolean;
}

export class Plot extends Figure<Picture, Picture> {
  private canvas = h("canvas");

  constructor(options: Options<Picture>) {
    super(options);
    this.surface.append(this.canvas);
  }

  protected describe(picture: Picture): Picture {
    return picture;
  }

  /** Sizes the canvas, which also clears it; `mark` paints. */
  protected paint(): void {
    const scale = window.devicePixelRatio || 1;
    const { canvas } = this;
    canvas.width = this.width * scale;
    canvas.height = this.options.height * scale;
    canvas.style.height = `${this.options.height}px`;
    canvas.getContext("2d")?.scale(scale, scale);
  }

  protected paintOn(g: CanvasRenderingContext2D, picture: Picture): void {
    const area = this.area();
    g.fillStyle = ink("--paper");
    g.fillRect(0, 0, this.width, this.options.height);
    g.save();
    g.beginPath();
    g.rect(area.x, area.y, area.width, area.height);
    g.clip();
    picture.draw(g, area);
    g.restore();
    if (!picture.plain) axes(g, area, picture);
  }

  /** Paints the picture, and over it a cross at the cursor and the frame of a drag. */
  protected mark(picture: Picture): void {
    const g = this.canvas.getContext("2d");
    if (g === null) return;
    this.paintOn(g, picture);
    const area = this.area();
    if (this.cursor !== null && this.isHeld) {
      const [x, y] = toPixels(picture, area, this.cursor);
      g.strokeStyle = ink("--ink");
      g.setLineDash([3, 3]);
      g.strokeRect(Math.round(x) + 0.5, area.y, 0, area.height);
      g.strokeRect(area.x, Math.round(y) + 0.5, area.width, 0);
      g.setLineDash([]);
    }
    const frame = this.framed();
    if (frame === null) return;
    g.fillStyle = "rgb(86 180 233 / 25%)";
    g.strokeStyle = ink("--link");
    g.fillRect(frame.x, frame.y, frame.width, frame.height);
    g.strokeRect(frame.x, frame.y, frame.width, frame.height);
  }
}

function axes(g: CanvasRenderingContext2D, area: Area, picture: Picture): void {
  const { x, y } = picture;
  g.strokeStyle = ink("--line");
  g.lineWidth = 1;
  g.strokeRect(area.x + 0.5, area.y + 0.5, area.width - 1, area.height - 1);
  g.fillStyle = ink("--ink");
  g.font = FONT;
  g.textBaseline = "middle";
  g.textAlign = "right";
  for (const [at, text] of written(y, area.height, true)) {
    const py = toPixels(picture, area, [x.from, at])[1];
    g.fillText(fitted(g, text, area.x - 26), area.x - 6, Math.min(Math.max(py, area.y + 6), area.y + area.height - 6));
    g.beginPath();
    g.moveTo(area.x - 4, py);
    g.lineTo(area.x, py);
    g.stroke();
  }
  g.textAlign = "center";
  g.textBaseline = "top";
  for (const [at, text] of written(x, area.width, false)) {
    const px = toPixels(picture, area, [at, y.from])[0];
    g.fillText(fitted(g, text, 96), Math.min(px, area.x + area.width + RIGHT - g.measureText(text).width / 2), area.y + area.height + 5);
    g.beginPath();
    g.moveTo(px, area.y + area.height);
    g.lineTo(px, area.y + area.height + 4);
    g.stroke();
  }
  g.fillStyle = ink("--faint");
  g.fillText(x.label, area.x + area.width / 2, area.y + area.height + 22);
  g.save();
  g.translate(3, area.y + area.height / 2);
  g.rotate(-Math.PI / 2);
  g.fillText(y.label, 0, 0);
  g.restore();
}
