// pdfjs-dist as upstream uses it, loaded with its worker for the first PDF.
type Source = { data: ArrayBuffer };
type Document = Awaited<ReturnType<typeof import('pdfjs-dist')['getDocument']>['promise']>;

export const GlobalWorkerOptions = { workerSrc: '' }; // upstream sets it to the worker of `pdf-worker.ts`

let loading: Promise<typeof import('pdfjs-dist')> | undefined;

async function load() {
	const [pdfjs, worker] = await Promise.all([
		import('pdfjs-dist'),
		import('pdfjs-dist/build/pdf.worker.min.mjs?raw')
	]);
	const script = new Blob([worker.default], { type: 'application/javascript' });

	pdfjs.GlobalWorkerOptions.workerSrc = URL.createObjectURL(script);

	return pdfjs;
}

export function getDocument(source: Source | ArrayBuffer): { promise: Promise<Document> } {
	loading ??= load();
	loading.catch(() => (loading = undefined)); // asked again by the next PDF

	return { promise: loading.then((pdfjs) => pdfjs.getDocument(source).promise) };
}
