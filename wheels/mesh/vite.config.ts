// The page's policy forbids scripts and styles within the HTML, so all of them are files with hashed names.
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';
import { notices } from './notices.ts';

export default defineConfig({
	base: '/mesh/',
	build: {
		assetsInlineLimit: 0,
		modulePreload: { polyfill: false },
		reportCompressedSize: false,
		target: 'es2022'
	},
	plugins: [svelte(), notices('meshd: MIT', [])]
});
