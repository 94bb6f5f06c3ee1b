// Which lines of the log are shown: meshd writes them as text or as JSON, with a level.

export type Level = 'debug' | 'info' | 'warning' | 'error';
const LEVELS: readonly Level[] = ['debug', 'info', 'warning', 'error'];
const IN_TEXT = /\[\s*(debug|info|warning|error|critical)\s*\]/;
const IN_JSON = /"level":\s*"(debug|info|warning|error|critical)"/;

/** The level of a line; a line without one belongs to the line before. */
export function levelOf(line: string): Level | null {
	const found = IN_TEXT.exec(line) ?? IN_JSON.exec(line);
	return found ? (found[1] === 'critical' ? 'error' : (found[1] as Level)) : null;
}

/** The lines of at least `least` ('': all) that contain `text`, in whatever case. */
export function filtered(lines: readonly string[], least: Level | '', text: string): string[] {
	const wanted = text.trim().toLowerCase();
	let level: Level = 'info';
	return lines.filter((line) => {
		level = levelOf(line) ?? level;
		const isLoud = least === '' || LEVELS.indexOf(level) >= LEVELS.indexOf(least);
		return isLoud && line.toLowerCase().includes(wanted);
	});
}
