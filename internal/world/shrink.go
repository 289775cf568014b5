package world

import (
	"maps"
	"slices"
)

// Shrink returns a play that goes without as much as possible and still fails. fails plays one, and returns after how many steps
// it failed; 0 = it did not. tries bounds the plays.
func Shrink(of Play, tries int, fails func(of Play) (steps int)) (smallest Play, left []Event) {
	run := func(without map[Event]bool) bool {
		tries--
		trial := of
		trial.Without, trial.Had, trial.Log = without, map[Event]bool{}, nil
		steps := fails(trial)
		if steps == 0 {
			return false
		}
		of = trial
		of.Steps = steps
		return true
	}
	if !run(of.Without) {
		return of, nil
	}
	for k := range kinds {
		if tries > 0 {
			run(with(of.Without, Event{Kind: k}))
		}
	}
	for part := 2; tries > 0; part *= 2 {
		all := events(of.Had)
		size := max(1, len(all)/part)
		for chunk := range slices.Chunk(all, size) {
			if tries > 0 {
				run(with(of.Without, chunk...))
			}
		}
		if size == 1 {
			break
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
