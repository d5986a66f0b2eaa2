package main

// Help is printed by kvasir batch run --help.
func (batchRunCmd) Help() string {
	return `The file is checked whole before anything is computed. Answers come in the order of the lines, each with its custom_id. Interrupted, the same command goes on with the lines that have no answer yet; what is done lies in a folder beside --output until then.

Examples:

    kvasir batch run questions.jsonl -o answers.jsonl
    kvasir batch run questions.jsonl -o answers.jsonl --experts remote --hub ID@HOST`
}

// Help is printed by kvasir batch submit --help.
func (batchSubmitCmd) Help() string {
	return `The server checks the file whole before it computes anything, and prints the batch that it has begun.

Example:

    kvasir batch submit questions.jsonl --server http://10.0.0.2:8080`
}

// Help is printed by kvasir batch status --help.
func (batchStatusCmd) Help() string {
	return `Examples:

    kvasir batch status
    kvasir batch status questions.jsonl`
}

// Help is printed by kvasir batch watch --help.
func (batchWatchCmd) Help() string {
	return `On a terminal it shows how far the batch is and when it will be done. The batch goes on without it.

Examples:

    kvasir batch watch questions.jsonl
    kvasir batch watch BATCH`
}

// Help is printed by kvasir batch fetch --help.
func (batchFetchCmd) Help() string {
	return `Examples:

    kvasir batch fetch BATCH -o answers.jsonl
    kvasir batch fetch BATCH --failed`
}

// Help is printed by kvasir batch cancel --help.
func (batchCancelCmd) Help() string {
	return `What is done by then can be fetched.

Example:

    kvasir batch cancel BATCH`
}
