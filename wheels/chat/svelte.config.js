// In place of upstream's: several files instead of one, so that diagrams, PDFs and symbolic mathematics are
// loaded when they are needed, and a version that is not the time of the build.
import adapter from '@sveltejs/adapter-static';
import { vitePreprocess } from '@sveltejs/vite-plugin-svelte';
import { mdsvex } from 'mdsvex';

export default {
	extensions: ['.svelte', '.svx'],
	kit: {
		adapter: adapter({ assets: 'dist', fallback: 'index.html', pages: 'dist', strict: true }),
		output: { bundleStrategy: 'split' },
		paths: { relative: true },
		router: { type: 'hash' },
		version: { name: process.env.MESHD_CHAT_VERSION }
	},
	preprocess: [vitePreprocess(), mdsvex()]
};
