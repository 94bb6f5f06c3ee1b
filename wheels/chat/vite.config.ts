// In place of upstream's: no service worker, which would keep the page of an older meshd, and no manifest and
// splash screens of an app. Files are not put into others as data, which the page's policy forbids for fonts.
import { lazy } from './lazy';
import { notices } from './notices';
import { nerdamerPlugin } from './scripts/vite-plugin-nerdamer';
import { sveltekit } from '@sveltejs/kit/vite';
import tailwindcss from '@tailwindcss/vite';
import { SvelteKitPWA } from '@vite-pwa/sveltekit';
import { resolve } from 'path';
import { defineConfig, type Plugin } from 'vite';

// The UI's modules import each other in circles, which have to stay within one file.
function circles(): Plugin {
	return {
		apply: 'build',
		name: 'meshd:circles',
		outputOptions(options) {
			if (this.environment.name !== 'client') return null;

			return { ...options, manualChunks: (id) => (id.includes('/src/lib/') ? 'ui' : undefined) };
		}
	};
}

export default defineConfig({
	build: { assetsInlineLimit: 0, reportCompressedSize: false },
	plugins: [
		lazy(),
		tailwindcss(),
		sveltekit(),
		SvelteKitPWA({ disable: true }),
		nerdamerPlugin(),
		notices('llama.cpp: MIT', ['node_modules/katex']), // fonts are no module
		circles()
	],
	resolve: { alias: { 'katex-fonts': resolve('node_modules/katex/dist/fonts') } }
});
