// highlight.js as upstream uses it: until it is there, code is shown plain.
type Highlighter = typeof import('highlight.js').default;

let loaded: Highlighter | undefined;
let loading: Promise<void> | undefined;

function load(): void {
	loading ??= import('highlight.js').then((module) => {
		loaded = module.default;
	});
	loading.catch(() => (loading = undefined)); // asked again by the next code
}

function plain(code: string): { value: string } {
	return { value: code.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;') };
}

export default {
	getLanguage(name: string) {
		load();

		return loaded?.getLanguage(name);
	},
	highlight(code: string, options: { language: string }) {
		return loaded?.highlight(code, options) ?? plain(code);
	},
	highlightAuto(code: string) {
		return loaded?.highlightAuto(code) ?? plain(code);
	}
};
