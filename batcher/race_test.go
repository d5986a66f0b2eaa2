//go:build race

package batcher

// raceEnabled: sync.Pool drops items on purpose under the race detector, so nothing can be said about
// allocations.
const raceEnabled = true
