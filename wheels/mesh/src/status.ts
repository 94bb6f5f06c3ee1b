// Written by `make reference` from the types of the control socket.
// Times are in seconds, sizes in bytes, dates in Unix seconds.

export interface AcceptReply {
	joiner: string;
	addresses: string[];
	seconds: number;
}

export interface AdviceView {
	change: string;
	gain: number;
	why: string;
	generate_tok_s: number;
	generate_tok_s_then: number;
	measured: boolean;
}

export interface AnswerTime {
	running: boolean;
	alone: boolean;
	ended_s_ago: number;
	queue_s: number;
	prompt_tokens: number;
	prompt_s: number;
	generated_tokens: number;
	generated_s: number;
}

export interface AnswersAtOnce {
	slots: number;
	tokens: number;
	shared: boolean;
	note: string;
}

export interface BanList {
	bans: BanView[];
}

export interface BanView {
	id: string;
	kind: string;
	banned_at: number;
	by: string;
	name: string;
}

export interface CapacityReply {
	devices: DeviceCapacity[];
	paths: PathCapacity[];
	left_out: LeftOutView[];
	unmeasured: LeftOutView[];
	storage: StorageCapacity[];
}

export interface ChildView {
	name: string;
	pid: number | null;
	state: string;
	restarts: number;
	reason: string;
}

export interface DeviceCapacity {
	node: string;
	device: string;
	free_bytes: number;
	total_bytes: number;
	weight_bytes_s: number | null;
	flops: number | null;
}

export interface DeviceView {
	name: string;
	kind: string;
	description: string;
	free_bytes: number;
	total_bytes: number;
	listed_s: number;
	weight_bytes_s: number | null;
	flops: number | null;
}

export interface Done {
}

export interface DrainReply {
	requests: number;
	leases: number;
}

export interface DrainStatus {
	workers: string[];
	answers: number;
}

export interface DrainView {
	models: number;
	requests: number;
}

export interface ExposedList {
	exposed: ExposedView[];
}

export interface ExposedView {
	name: string;
	target: string;
	to: string[];
	to_names: string[];
	streams: number;
	sent_bytes: number;
	received_bytes: number;
}

export interface FetchSource {
	node: string;
	bytes: number;
	problem: string;
}

export interface FetchStatus {
	name: string;
	step: string;
	activity: string;
	source: string;
	done_bytes: number;
	total_bytes: number;
	bytes_s: number;
	sources: FetchSource[];
}

export interface FilesInUseReply {
	paths: string[];
}

export interface FitsReply {
	models: ShortModelFit[];
	workers: string[];
	left_out: LeftOutView[];
}

export interface ForgetReply {
	id: string;
	name: string;
}

export interface GatewayStatus {
	url: string;
	ready: boolean;
	requests: number;
	tokens: number;
	running: number;
	waiting: number;
	keys: KeyStatus[];
	reason: string;
	continue_s: number;
}

export interface HealthWarning {
	code: string;
	severity: 'info' | 'warning' | 'error';
	what: string;
	hint: string;
}

export interface HolderView {
	node: string;
	bytes: number;
	problem: string;
}

export interface InviteList {
	invites: InviteView[];
}

export interface InviteReply {
	token: string;
	id: string;
	expires_at: number;
	uses: number;
	url: string;
}

export interface InviteView {
	id: string;
	roles: string[];
	created_at: number;
	expires_at: number;
	uses: number;
	used: number;
	state: string;
	joined: Joined[];
	browser: string;
}

export interface Joined {
	id: string;
	name: string;
}

export interface KeyStatus {
	name: string;
	active: number;
	answers: number;
	prompt_tokens: number;
	generated_tokens: number;
	tokens_today: number;
}

export interface LeftOutView {
	node: string;
	why: string;
}

export interface LentMemory {
	head: string;
	model: string;
	bytes: number;
	state: 'standby' | 'loading' | 'loaded';
	head_name: string;
	computed_s: number;
}

export interface LinkView {
	kind: 'tcp' | 'webrtc' | 'quic' | 'relay';
	path: 'loopback' | 'lan' | 'public' | 'mapped' | 'punched' | 'relayed';
	remote: string;
	rtt_ms: number | null;
	since: number;
	sent_bytes: number;
	received_bytes: number;
	bytes_s: number | null;
}

export interface MdnsStatus {
	state: 'off' | 'looking' | 'silent' | 'heard';
	networks: string[];
	members: number;
	why: string;
}

export interface MemberModelView {
	node: string;
	name: string;
	names: string[];
	bytes: number;
	files: number;
	quant: string | null;
	architecture: string | null;
	fingerprint: string | null;
	content: string | null;
}

export interface MemberModelsReply {
	models: MemberModelView[];
	left_out: LeftOutView[];
	pulls: PullReply[];
}

export interface MeshView {
	id: string;
	members: number;
	roles: string[];
}

export interface MetricsReply {
	text: string;
}

export interface ModelStatus {
	name: string;
	fingerprint: string;
	state: 'fetching' | 'waiting' | 'loading' | 'ready' | 'degraded' | 'failed' | 'unloaded';
	reason: string;
	load_seconds: number | null;
	weights_local_bytes: number;
	weights_network_bytes: number;
	tensors_from_network: NetworkTensor[];
	bytes_per_token: number | null;
	split: SplitPart[];
	progress: number | null;
	too_few_workers: boolean;
	workers: WorkerWeights[];
	answers: AnswersAtOnce | null;
	predicted: Speeds | null;
	measured: Speeds | null;
	aliases: string[];
	group: string;
	ttl_s: number;
	running: number;
	waiting: number;
	speculation: SpeculationStatus | null;
	standby: StandbyStatus[];
	fallbacks: string[];
	measuring_seconds: number;
	estimated: string[];
	split_why: string;
	fallback: string;
	weights_fetched_bytes: number;
	by_tensors: boolean;
	draining: DrainStatus | null;
}

export interface NatView {
	kind: string;
	mapping: string;
	filtering: string;
	ports: string;
	step: number;
}

export interface NetcheckReply {
	udp: string;
	tcp: string;
	nat: NatView;
	tcp_nat: NatView;
	ipv6: string;
	hairpin: string;
	public_v4: string | null;
	public_v6: string | null;
	carrier_nat: boolean;
	port_mapping: PortMappingView;
	direct: string;
	problems: ProblemView[];
	servers: string[];
	age_s: number;
	daemon: boolean;
}

export interface NetworkTensor {
	name: string;
	bytes: number;
	node: string;
	reason: string;
}

export interface NodeView {
	id: string;
	name: string;
	role: string;
	version: string;
	pid: number;
	uptime_s: number;
	rss_bytes: number;
	listen: string[];
	home: string;
	paused: boolean;
	draining: DrainView | null;
}

export interface PathCapacity {
	source: string;
	to: string;
	rtt_ms: number;
	bytes_s: number | null;
}

export interface PeerView {
	id: string;
	name: string;
	role: string;
	state: 'known' | 'connecting' | 'connected' | 'suspended' | 'lost';
	link: LinkView | null;
	standby_links: LinkView[];
	why_not_direct: string | null;
	resumes: number;
	version: string;
	native: string;
	native_protocol: string;
	state_s: number | null;
	last_error: string;
	says_banned: string;
	says_in_use: string;
	grace_s: number;
	stopped: string;
	present: boolean;
	faults: number;
	last_fault: string;
	paused: boolean;
	fetching: boolean;
	draining: boolean;
	upgrade: string;
}

export interface PingReply {
	peer: string;
	name: string;
	rtt_ms: number;
	kind: 'tcp' | 'webrtc' | 'quic' | 'relay';
	path: 'loopback' | 'lan' | 'public' | 'mapped' | 'punched' | 'relayed';
	remote: string;
}

export interface PlanPart {
	part: string;
	token_s: number;
	prompt_s: number;
}

export interface PlanReply {
	model: string;
	head: string;
	choice: number;
	plans: PlanView[];
	left_out: LeftOutView[];
	ways: WaysView | null;
}

export interface PlanSpeculation {
	free_tokens: number;
	model_tokens: number;
	free_acceptance: number;
	model_acceptance: number;
	measured: boolean;
	repetitive_tok_s: number;
	prose_tok_s: number;
	why: string;
	why_no_model: string;
}

export interface PlanView {
	nodes: PlannedNode[];
	prompt_tok_s: number;
	generate_tok_s: number;
	streams_tok_s: number;
	first_token_s: number;
	load_s: number;
	load_bytes: number | null;
	bytes_per_token: number;
	ctx_size: number;
	slots: number;
	ubatch: number;
	output_on: string;
	measured: boolean;
	why: string;
	answer_s: number;
	prompt_tokens: number;
	answer_tokens: number;
	parts: PlanPart[];
	speculation: PlanSpeculation | null;
	ctx_note: string;
	by_tensors: boolean;
}

export interface PlannedNode {
	node: string;
	device: string;
	layers: number;
	memory_bytes: number;
}

export interface PortMappingView {
	state: string;
	language: string | null;
	gateway: string | null;
	external: string | null;
	mappings: string[];
	verified: boolean | null;
	why: string;
}

export interface ProblemView {
	code: string;
	severity: 'info' | 'warning' | 'error';
	what: string;
	hint: string;
}

export interface PullReply {
	id: number;
	step: string;
	name: string;
	done_bytes: number;
	total_bytes: number;
	before_bytes: number;
	rate: number;
	activity: string;
	holders: HolderView[];
	paths: string[];
	fingerprint: string | null;
	was_here: boolean;
	source: string;
	asked: string;
	note: string;
	error: string;
	hint: string;
	code: string;
}

export interface RevokeReply {
	id: string;
	name: string;
	removed: Joined[];
}

export interface ShortModelFit {
	name: string;
	here: string;
	mesh: string;
}

export interface SpeculationStatus {
	free: number;
	model: number;
	drafted: number;
	accepted: number;
	gain: number | null;
	why: string;
	why_no_model: string;
}

export interface Speeds {
	prompt_tok_s: number | null;
	generate_tok_s: number | null;
}

export interface SplitPart {
	node: string;
	device: string;
	layers: number;
	bytes: number;
	push: boolean | null;
	why_no_push: string;
}

export interface StandbyStatus {
	node: string;
	ready: boolean;
	held_bytes: number;
	wanted_bytes: number;
	why: string;
}

export interface Status {
	node: NodeView;
	mesh: MeshView | null;
	peers: PeerView[];
	tunnels: TunnelView[];
	children: ChildView[];
	model: ModelStatus | null;
	api: GatewayStatus | null;
	mdns: MdnsStatus | null;
	store: StoreStatus | null;
	warnings: HealthWarning[];
	models: ModelStatus[];
	devices: DeviceView[];
	storage: StorageView | null;
	lent: LentMemory[];
	fetching: FetchStatus | null;
	schema: number;
}

export interface StorageCapacity {
	node: string;
	free_bytes: number | null;
	cache_room_bytes: number | null;
	models: StoredFile[];
	more_models: number;
	why_not: string;
}

export interface StorageView {
	path: string;
	free_bytes: number | null;
	cache_room_bytes: number | null;
	models: number | null;
	models_bytes: number | null;
}

export interface StoreStatus {
	path: string;
	bytes: number;
	limit: number;
	tensors: number;
	problem: string;
}

export interface StoredFile {
	name: string;
	bytes: number;
	fingerprint: string | null;
}

export interface TimeAccount {
	seconds: number;
	tokens: number;
	parts: TimePart[];
	unexplained: number;
	rounds: number;
}

export interface TimePart {
	kind: 'queue' | 'computing' | 'way' | 'waiting' | 'llama-server' | 'at the same time';
	where: string;
	seconds: number;
	source: 'measured' | 'path' | 'predicted' | 'sum';
}

export interface TunnelList {
	tunnels: TunnelView[];
}

export interface TunnelView {
	peer: string;
	service: string;
	listen: string;
	streams: number;
	sent_bytes: number;
	received_bytes: number;
	user: boolean;
	last_error: string;
	peer_name: string;
}

export interface UiLinkReply {
	state: 'waiting' | 'opened' | 'ended';
}

export interface UiReply {
	url: string;
	id: string;
	lan_url: string;
}

export interface WaysView {
	layers_tok_s: number | null;
	tensors_tok_s: number | null;
	text: string;
}

export interface WhyReply {
	model: string;
	split: string;
	requests: number;
	answers: AnswerTime[];
	token: TimeAccount | null;
	prompt: TimeAccount | null;
	advice: AdviceView;
	round: TimeAccount | null;
	why_no_round: string;
	generate_tok_s_at_load: number | null;
	since_load: string[];
	ways: WaysView | null;
	by_tensors: boolean;
}

export interface WorkerWeights {
	node: string;
	total_bytes: number;
	local_bytes: number;
	missing_bytes: number;
	sent_bytes: number;
}
