// Every text of the page, by view. What nodes say (reasons, hints, warnings) comes worded from meshd.
export const texts = {
	views: {
		machines: 'Machines',
		models: 'Models',
		plan: 'Plan',
		network: 'Network',
		invite: 'Invite',
		agents: 'Agents',
		logs: 'Logs'
	},
	app: {
		skip: 'Skip to content',
		views: 'Views',
		chat: 'Chat',
		connecting: 'Connecting to the node…',
		stale: (seconds: number) => `The node has not answered for ${seconds} s. This is what it said last.`,
		session: 'Open this page with a link of its own',
		sessionHint: 'On the machine where meshd runs, as the same user, run:',
		refused: 'That link was used already, or is more than a minute old. Make a new one:',
		key: 'This node needs an API key',
		keyLabel: 'API key',
		keySend: 'Use it'
	},
	errors: {
		unreachable: 'The node does not answer.',
		unreachableHint: 'Is it running? `meshd status` says so.',
		unknown: 'The node refused this without a reason.'
	},
	copy: { copy: 'Copy', copied: 'Copied' }
};
