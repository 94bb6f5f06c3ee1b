/** `14:05`: the time of day of a date in Unix seconds, where the browser is. */
export function inClock(at: number): string {
	return new Date(at * 1000).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
}
