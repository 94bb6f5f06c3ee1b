// Where the picture puts the machines: this one in the middle or on the left, its peers in columns beside it, so
// that no line crosses a machine or another line's label. All numbers are CSS pixels.

export const ROW = 68;
export const HEIGHT = 54;
const BEND = 56; // of a line, between this node and the label
const LABEL = 190;
const LEAST_BOX = 150;
const MOST_BOX = 250;
const SIDES_FROM = 5; // peers, from which both sides are used

/** Least width of a picture; what is narrower shows the list alone. */
export const LEAST_WIDTH = 2 * LEAST_BOX + BEND + LABEL;

export interface Box {
	x: number;
	y: number;
	width: number;
}

/** A peer: its box, the line to it, and the middle of the line's straight part, on which the label stands. */
export interface Spot {
	box: Box;
	line: string;
	labelX: number;
	labelY: number;
}

export interface Layout {
	here: Box;
	peers: Spot[];
	height: number;
}

/** Return the places of `count` peers in a picture of `width`. */
export function layout(count: number, width: number): Layout {
	const both = count >= SIDES_FROM && width >= 3 * LEAST_BOX + 2 * (BEND + LABEL);
	const boxes = both ? 3 : 2;
	const free = width - (boxes - 1) * (BEND + LABEL);
	const box = Math.min(MOST_BOX, Math.floor(free / boxes));
	const right = both ? Math.ceil(count / 2) : count;
	const height = Math.max(1, right) * ROW;
	const middle = height / 2;
	const here = { x: both ? (width - box) / 2 : 0, y: middle - HEIGHT / 2, width: box };
	const peers = Array.from({ length: count }, (_, at): Spot => {
		const isRight = at < right;
		const [row, rows] = isRight ? [at, right] : [at - right, count - right];
		const y = middle + (row - (rows - 1) / 2) * ROW;
		const x = isRight ? width - box : 0;
		const from = isRight ? here.x + box : here.x;
		const to = isRight ? x : box;
		const bend = isRight ? from + BEND : from - BEND;
		const half = (from + bend) / 2;
		return {
			box: { x, y: y - HEIGHT / 2, width: box },
			line: `M${from} ${middle}C${half} ${middle} ${half} ${y} ${bend} ${y}L${to} ${y}`,
			labelX: (bend + to) / 2,
			labelY: y
		};
	});
	return { here, peers, height };
}
