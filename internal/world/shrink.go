package world

import (
	"maps"
	"slices"
)

// Shrink returns a play that goes without as much as possible and still fails. fails plays one, and returns after how many steps
// it failed; 0 = it did not. budget bounds the steps of all plays together.
//
// It leaves out kinds first, and then single events: halves of them, quarters, and so on. An event that has become of no use by
// what was left out later is found by the next round.
func Shrink(of Play, budget int, fails func(of Play) (steps int)) (smallest Play, left []Event) {
	run := func(without map[Event]bool) bool {
		trial := of
		trial.Without, trial.Had, trial.Log = without, map[Event]bool{}, nil
		steps := fails(trial)
		if steps == 0 {
			budget -= of.Steps
			return false
		}
		budget -= steps
		of = trial
		of.Steps = steps
		return true
	}
	if !run(of.Without) {
		return of, nil
	}
	for k := range kinds {
		if budget > 0 {
			run(with(of.Without, Event{Kind: k}))
		}
	}
	for smaller := true; smaller && budget > 0; {
		smaller = false
		for size := len(of.Had) / 2; size > 0; size /= 2 {
			for chunk := range slices.Chunk(events(of.Had), size) {
				if budget > 0 && run(with(of.Without, chunk...)) {
					smaller = true
				}
			}
		}
	}
	return of, events(of.Had)
}

// with returns a set of events with some more.
func with(of map[Event]bool, more ...Event) map[Event]bool {
	all := map[Event]bool{}
	maps.Copy(all, of)
	for _, e := range more {
		all[e] = true
	}
	return all
}

// events returns the events in their order.
func events(of map[Event]bool) []Event {
	return slices.SortedFunc(maps.Keys(of), func(a, b Event) int {
		if a.Step != b.Step {
			return a.Step - b.Step
		}
		return int(a.Kind) - int(b.Kind)
	})
}
