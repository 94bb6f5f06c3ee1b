// The page that works from anywhere: one file with all that it needs, which can be saved and sent.
import { createHash } from 'node:crypto';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Plugin } from 'vite';
import { notices } from './notices.ts';

const REST =
	"default-src 'none'; connect-src ws: wss:; img-src data:; base-uri 'none'; form-action 'none'";

export default defineConfig({
	base: './',
	build: {
		emptyOutDir: false,
		cssCodeSplit: false,
		modulePreload: { polyfill: false },
		reportCompressedSize: false,
		rollupOptions: { input: 'remote.html' },
		target: 'es2022'
	},
	plugins: [svelte(), notices('meshd, the page for other networks: MIT', []), within()]
});

// Puts script, styles and licences into the HTML, with a policy that names the hashes.
function within(): Plugin {
	return {
		name: 'meshd-within',
		enforce: 'post',
		generateBundle(_options, bundle) {
			const all = Object.values(bundle);
			const html = all.find((file) => file.type === 'asset' && file.fileName.endsWith('.html'));
			const script = all.find((file) => file.type === 'chunk');
			const style = all.find((file) => file.type === 'asset' && file.fileName.endsWith('.css'));
			const licences = all.find((file) => file.type === 'asset' && file.fileName === 'LICENSES.txt');
			if (licences?.type !== 'asset') throw new Error('the page has no licences');
			if (html?.type !== 'asset' || script?.type !== 'chunk' || style?.type !== 'asset' || all.length !== 4) {
				throw new Error(`the page is not one script and one style: ${Object.keys(bundle).join(', ')}`);
			}
			const code = script.code.trim().replaceAll('</script', '<\\/script').replaceAll('<!--', '<\\!--');
			const rules = String(style.source).trim();
			const policy = `${REST}; script-src '${hash(code)}'; style-src '${hash(rules)}'`;
			html.source = String(html.source)
				.replace(/\s*<script type="module"[^>]*><\/script>/, '')
				.replace(/\s*<link rel="stylesheet"[^>]*>/, () => `\n\t\t<style>${rules}</style>`)
				.replace('<meta charset="utf-8" />', (tag) => `${tag}\n\t\t<meta http-equiv="Content-Security-Policy" content="${policy}" />`)
				.replace('</body>', () => `\t<script type="module">${code}</script>\n\t</body>`)
				.concat(`<!--\n${String(licences.source).replaceAll('-->', '-- >')}-->\n`);
			delete bundle[licences.fileName];
			delete bundle[script.fileName];
			delete bundle[style.fileName];
		}
	};
}

function hash(text: string): string {
	return `sha256-${createHash('sha256').update(text).digest('base64')}`;
}
