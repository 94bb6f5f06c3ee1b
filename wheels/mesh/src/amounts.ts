// Words for amounts, as meshd/base/units.py has them.

/** `1 worker`, `2 workers`. */
export function inNumber(number: number, thing: string): string {
	return `${number} ${thing}${number === 1 ? '' : 's'}`;
}

/** `12.3 MB`: powers of 1000, as disks and networks are sold. */
export function inBytes(count: number): string {
	for (const unit of ['B', 'kB', 'MB', 'GB']) {
		if (Math.abs(count) < 1000) return `${unit === 'B' ? Math.round(count) : count.toFixed(1)} ${unit}`;
		count /= 1000;
	}
	return `${count.toFixed(1)} TB`;
}

/** `1.5 GiB`, `300 MiB`: powers of 1024, as devices report memory. */
export function inMemory(count: number): string {
	return count >= 1 << 30 ? `${(count / (1 << 30)).toFixed(1)} GiB` : `${Math.round(count / (1 << 20))} MiB`;
}

/** `4 s`, `3 min`, `2 h 10 min`, `5 d 3 h`. */
export function inTime(seconds: number): string {
	const whole = Math.round(Math.max(0, seconds));
	if (whole < 120) return `${whole} s`;
	if (whole < 7200) return `${Math.floor(whole / 60)} min`;
	const [unit, size, below, part] = whole < 172800 ? ['h', 3600, 'min', 60] : (['d', 86400, 'h', 3600] as const);
	const rest = Math.floor((whole % size) / part);
	return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${below}` : ''}`;
}

/** `12.3 ms`; `—` where it is not known. */
export function inMilliseconds(ms: number | null): string {
	return ms === null ? '—' : `${ms.toFixed(ms < 10 ? 2 : 1)} ms`;
}

/** `34%`. */
export function inPercent(share: number): string {
	return `${Math.round(share * 100)}%`;
}
