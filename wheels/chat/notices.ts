// Writes `LICENSES.txt`: the licences of the page's own code and of the packages whose code or fonts are in it.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Plugin } from 'vite';

const LINE = `\n${'-'.repeat(80)}\n\n`;

function folderOf(id: string): string | null {
	const file = id.replace(/^\0/, '').replace(/\?.*/, '');
	const at = file.lastIndexOf('/node_modules/') + '/node_modules/'.length;

	if (at < '/node_modules/'.length) return null;

	const name = /^(@[^/]+\/)?[^/]+/.exec(file.slice(at));

	return name && file.slice(0, at) + name[0];
}

function notice(folder: string): string {
	const about = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf-8'));
	const file = readdirSync(folder)
		.sort()
		.find((name) => /^(licen[cs]e|copying)/i.test(name));
	const text = file ? readFileSync(join(folder, file), 'utf-8').trim() : 'The package has no text of it.';

	return `${about.name} ${about.version}: ${about.license}\n\n${text}\n`;
}

/** `own`: the line that names the page's own code; its licence is in `LICENSE`. `folders`: packages besides. */
export function notices(own: string, besides: string[]): Plugin {
	return {
		apply: 'build',
		generateBundle(_options, bundle) {
			const folders = new Set<string>(besides);

			for (const chunk of Object.values(bundle)) {
				if (chunk.type !== 'chunk') continue;

				for (const id of Object.keys(chunk.modules)) {
					const folder = folderOf(id);

					if (folder && existsSync(join(folder, 'package.json'))) folders.add(folder);
				}
			}

			const parts = [...folders].sort().map(notice);
			const first = `${own}\n\n${readFileSync('LICENSE', 'utf-8').trim()}\n`;

			this.emitFile({
				fileName: 'LICENSES.txt',
				source: [first, ...new Set(parts)].join(LINE),
				type: 'asset'
			});
		},
		name: 'meshd:notices'
	};
}
