package world_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"listedge/internal/world"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// What is judged of keys.
var (
	revocation  = promise{"Keys", "A revoked key stops within a second on every node that reaches Postgres (5 s if look-ups take over 0.2 s)"}
	keyWorks    = promise{"Keys", "A key that was created or imported works on every node that reaches Postgres"}
	changedKey  = promise{"Keys", "If look-ups fail and the node still follows the changes of the primary, as while `workspaces` is locked"}
	scheduled   = promise{"Keys", "So does a key with a revocation or suspension to come."}
	otherKeys   = promise{"Keys", "All other known keys stay valid."}
	wrongServer = promise{"Keys", "If a node knows of a change of the key and reaches only a server that is not the primary, requests with it get 503"}
	ofOthers    = promise{"Keys", "A valid key is never refused because of the failures of others"}
	costs       = promise{"Keys", "A known key that does not change costs no statement while the node follows changes, unless"}
	madeUpKeys  = promise{"Keys", "Made-up ones cost a node at most 50 at once, and 50 a second."}
	ofKeys      = []promise{ofOthers, costs, madeUpKeys, revocation, keyWorks, changedKey, scheduled, otherKeys, wrongServer}
)

// judgeKey judges what a key was answered.
func (w *run) judgeKey(u *use) {
	k := u.node.keys
	if w.Traces() {
		is := ""
		if u.err == nil {
			is = u.entry.Key.Label.Name
		}
		w.Tracef("%s is asked with key %d for %s, and knows version %q: %q", u.node, u.n, u.ended.Sub(u.arrived), is, fmt.Sprint(u.err))
	}
	switch {
	case u.err != nil && u.node.lives.Err() != nil: // it has been stopped
	case u.err == nil:
		w.counts["keys"]++
		w.judgeAccepted(u)
	case errors.Is(u.err, apikey.ErrUnknown), errors.Is(u.err, apikey.ErrMalformed):
		w.counts["unknown keys"]++
		k.good[u.n] = good{}
		if e := k.entries[u.n]; e != nil && errors.Is(u.err, apikey.ErrUnknown) && k.Label(e.Key.ID) == e.Key.Label {
			w.breaks(revocation, "%s keeps version %s of key %d, which it does not know any more", u.node, e.Key.Label.Name, u.n)
		}
		k.entries[u.n] = nil
		if !w.lacked(u) {
			w.breaks(keyWorks, "%s does not know key %d: %v", u.node, u.n, u.err)
		}
	case errors.Is(u.err, postgres.ErrUnavailable):
		w.counts["keys unavailable"]++
		w.judgeUnavailable(u)
	default:
		w.breaks(keyWorks, "%v", u.err)
	}
}

// judgeAccepted judges an entry: it was right as long ago as it may be, and is not one that must be looked up.
func (w *run) judgeAccepted(u *use) {
	k, key := u.node.keys, u.entry.Key
	waited, failed := k.trouble(u)
	took := u.ended.Sub(u.arrived)
	if !waited && !failed && took > 3*quick && k.stepped.Before(u.arrived) {
		w.breaks(ofOthers, "key %d waits %s at %s, where all look-ups are quick", u.n, took, u.node)
	}
	oldest, bound := u.arrived.Add(-keyBound), keyBound
	switch {
	case failed:
		oldest, bound = u.ended.Add(-keyGrace), keyGrace
	case waited:
		oldest, bound = u.arrived.Add(-slowBound), slowBound
	}
	if u.entry.Value != int(key.Limit.Version) {
		w.breaks(revocation, "the entry of key %d at %s has the value of version %d, and is version %d", u.n, u.node, u.entry.Value, key.Limit.Version)
	}
	until, was := w.wasKey(u.n, key, u.ended)
	k.entries[u.n] = u.entry
	if k.isOld(u, oldest) {
		k.good[u.n] = good{}
		return
	}
	newer := k.lookedUp(u)
	if was && until.Before(newer) {
		w.breaks(revocation, "version %d of key %d at %s was right until %s before a look-up that had ended", key.Limit.Version, u.n, u.node, newer.Sub(until))
	}
	if !was || until.Before(oldest.Add(-overlooked)) {
		w.breaks(revocation, "version %d of key %d at %s was not right since %s ago, more than %s", key.Limit.Version, u.n, u.node, u.ended.Sub(until), bound)
	}
	if !waited && !failed {
		k.good[u.n] = good{u.arrived, key}
	} else if k.good[u.n].key != key {
		k.good[u.n] = good{}
	}
	if !until.Before(u.arrived) {
		return
	}
	w.counts["old keys"]++
	told, knows := k.told(until)
	if !key.Scheduled && knows && !told.After(u.arrived) && !k.wrong.IsZero() && !k.wrong.After(u.arrived) {
		w.breaks(wrongServer, "version %d of key %d at %s was not right since %s ago", key.Limit.Version, u.n, u.node, u.ended.Sub(until))
	}
	why := changedKey
	if key.Scheduled {
		told, knows, why = until, true, scheduled
	}
	up, young := k.upSince(u.ended)
	if knows && young && k.follows(u.arrived, u.arrived) {
		for _, from := range []time.Time{up, k.stepped} {
			if from.After(told) {
				told = from
			}
		}
		if u.arrived.Sub(told) > slowBound+overlooked {
			w.breaks(why, "version %d of key %d at %s, which it knows since %s", key.Limit.Version, u.n, u.node, u.arrived.Sub(told))
		}
	}
}

// lookedUp is when the last of the look-ups of the key that ended before the request began.
func (k *nodeKeys) lookedUp(u *use) (began time.Time) {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	for _, l := range k.lookups {
		if slices.Contains(l.keys, u.n) && l.err == nil && !l.old && !l.ended.IsZero() && l.ended.Before(u.arrived) && l.began.After(began) {
			began = l.began
		}
	}
	return began
}

// judgeUnavailable judges that a key could not be looked up.
func (w *run) judgeUnavailable(u *use) {
	k := u.node.keys
	waited, failed := k.trouble(u)
	if u.n >= world.Keys-world.Forms && k.formsAt.IsZero() && u.arrived.Sub(k.noForms) < keyBound {
		return
	}
	if !failed && !(waited && w.lacked(u)) {
		w.breaks(keyWorks, "%s had no answer for key %d, and all its look-ups had", u.node, u.n)
	}
	is := k.good[u.n]
	if is.at.IsZero() || u.ended.Sub(is.at) > keyGrace-2*keyBound || u.ended.Sub(k.stepped) < 2*keyGrace && !k.stepped.IsZero() {
		return
	}
	up, _ := k.upSince(u.ended)
	changed := slices.ContainsFunc(k.touched, func(t touch) bool {
		of := t.row == "" || t.row == is.key.ID.String() || t.row == is.key.Workspace.String()
		return t.at.After(is.at.Add(-2*keyBound)) && (of || t.at.Before(is.at.Add(keyBound)))
	})
	switch {
	case !changed && !is.key.Scheduled:
		w.breaks(otherKeys, "key %d, which %s knew %s ago", u.n, u.node, u.ended.Sub(is.at))
	case changed && !k.wrong.IsZero():
	case u.ended.Sub(up) < slowBound-overlooked:
		w.breaks(changedKey, "key %d, which %s knew %s ago, after %s", u.n, u.node, u.ended.Sub(is.at), u.ended.Sub(up))
	}
}

// trouble says whether a look-up that the request may have waited for, or not any more, took long, or failed.
func (k *nodeKeys) trouble(u *use) (waited, failed bool) {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	for _, l := range k.lookups {
		end := l.ended
		if end.IsZero() {
			end = k.run.Now()
		}
		if l.began.After(u.ended) || end.Add(pause).Before(u.arrived) {
			continue
		}
		took := end.Sub(l.began)
		waited = waited || took > quick || l.err != nil
		failed = failed || took > slow || l.err != nil
	}
	return waited, failed
}

// isOld says whether the old primary had this key since then, and was not refused: nobody knew of another.
func (k *nodeKeys) isOld(u *use, since time.Time) bool {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	return slices.ContainsFunc(k.lookups, func(l *lookup) bool {
		return l.old && l.err == nil && !l.began.Before(since.Add(-overlooked)) && l.found[keyHashes[u.n]] == u.entry.Key
	})
}

// wasKey returns until when, at most, the key was so, and whether it ever was.
func (w *run) wasKey(n int, key apikey.Key, end time.Time) (until time.Time, was bool) {
	for i := len(w.Moments) - 1; i >= 0; i-- {
		m := &w.Moments[i]
		if m.From.After(end) {
			continue
		}
		last := end.Add(1)
		if i+1 < len(w.Moments) && w.Moments[i+1].From.Before(last) {
			last = w.Moments[i+1].From
		}
		last = last.Add(-1)
		if row := m.Keys[n]; row != nil { // and just before it ends
			for _, ends := range []time.Time{last, row.EndsAt.Add(-1), m.Workspaces[row.Workspace].EndsAt.Add(-1)} {
				if is, _ := keyIn(&m.Accounts, n, ends, key.StartedAt.Value()); is == key && !ends.After(last) && !ends.Before(m.From) && ends.After(until) {
					until, was = ends, true
				}
			}
		}
		if was {
			return until, was
		}
	}
	return until, was
}

// lacked says whether the key did not exist at a moment of the request, or nobody knew its form a second ago, or the old primary
// answered.
func (w *run) lacked(u *use) bool {
	k, from := u.node.keys, u.arrived
	imported := u.n - (world.Keys - world.Forms)
	if imported >= 0 {
		from = from.Add(-keyBound)
		if !k.noForms.Before(from) {
			return true
		}
	}
	for m := range w.Since(from) {
		if !m.From.After(u.ended) && (m.Keys[u.n] == nil || imported >= 0 && !m.Imported[imported]) {
			return true
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(k.lookups, func(l *lookup) bool { return l.old && l.err == nil && !l.ended.Before(u.arrived) })
}

// told is when the node had read of all that was visible at a moment; false = it has not, or may have missed some.
func (k *nodeKeys) told(moment time.Time) (at time.Time, knows bool) {
	for _, b := range k.beats {
		if b.moment.After(moment) {
			missed := slices.ContainsFunc(k.resets, func(t time.Time) bool { return !t.Before(moment) && !t.After(b.at) })
			return b.at, !missed && !b.at.Before(moment)
		}
	}
	return at, false
}

// upSince is since when the log has proven without a break that the primary is up, and whether it does still.
func (k *nodeKeys) upSince(now time.Time) (up time.Time, young bool) {
	up = now
	for _, b := range slices.Backward(k.beats) {
		if b.at.After(now) {
			continue
		}
		if up.Sub(b.moment) >= keyBound {
			return up, young
		}
		young = young || up.Equal(now) && !slices.ContainsFunc(k.resets, func(t time.Time) bool { return !t.Before(b.at) })
		up = b.at
	}
	return up, young
}

// follows says whether a proof that was read before was young then.
func (k *nodeKeys) follows(read, then time.Time) bool {
	return slices.ContainsFunc(k.beats, func(b proven) bool { return !b.at.After(read) && then.Sub(b.moment) < keyBound })
}

// proves says whether what was read of a server at a moment is proven to be so still: nothing that the node has read of keys
// has changed since, and it has missed nothing.
func (k *nodeKeys) proves(at time.Time, run string) bool {
	now := k.run.Now()
	if len(k.beats) == 0 || k.joins || at.IsZero() || !k.stepped.IsZero() && now.Sub(k.stepped) < 2*keyGrace {
		return false
	}
	last := k.beats[len(k.beats)-1]
	joined := slices.IndexFunc(k.beats, func(b proven) bool {
		return !slices.ContainsFunc(k.resets, func(t time.Time) bool { return t.After(b.at) })
	})
	return joined >= 0 && last.run == run && now.Sub(last.moment) < refreshes-overlooked && k.beats[joined].at.Before(at) &&
		!slices.ContainsFunc(k.touched, func(t touch) bool { return !t.at.Before(at) })
}

// judgeCost judges that a look-up is one of texts that may be keys, and not of what is known. run.mu is locked.
func (k *nodeKeys) judgeCost(hashes []apikey.Hash, l *lookup) {
	w := k.run
	for _, hash := range hashes {
		if !mayBeAsked[hash] {
			w.breaks(whoGetsPages, "%s looks up what cannot be a key", k.node)
		}
	}
	busy := slices.ContainsFunc(k.lookups, func(l *lookup) bool { return l.ended.IsZero() || w.Now().Sub(l.ended) < quick })
	for _, n := range l.keys {
		i := len(k.lookups) - 1
		for i >= 0 && (k.lookups[i].err != nil || !slices.Contains(k.lookups[i].keys, n)) {
			i--
		}
		if busy || i < 0 {
			continue // a request may have waited for it since before it was known
		}
		known, ok := k.lookups[i].found[keyHashes[n]]
		if ok && !known.Scheduled && k.proves(k.lookups[i].began, known.StartedAt.Value()) {
			w.breaks(costs, "%s looks up key %d, which it knows since %s", k.node, n, w.Now().Sub(k.lookups[i].began))
		}
	}
}

// judgeForms judges that forms are read.
func (k *nodeKeys) judgeForms() {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	w, since := k.run, k.run.Now().Sub(k.readForms)
	switch {
	case since < refreshes && k.stepped.Before(k.readForms):
		w.breaks(costs, "%s reads the forms again after %s", k.node, since)
	case k.proves(k.formsAt, k.formsOf):
		w.breaks(costs, "%s reads the forms again after %s, and no key has changed", k.node, since)
	}
	k.readForms = w.Now()
}

// judgeFlood judges how often keys that were made up are looked up. run.mu is locked.
func (k *nodeKeys) judgeFlood(hashes []apikey.Hash, l *lookup) {
	ours, _ := apikey.HashOf(madeUpTexts[0])
	if !slices.Contains(hashes, ours) {
		return
	}
	k.madeUp = max(0, k.madeUp-madeUpRate*l.ended.Sub(k.madeUpAt).Seconds()) + 1
	k.madeUpAt = l.ended
	if k.madeUp > madeUpBurst+2 {
		k.run.breaks(madeUpKeys, "keys that were made up cost %s %.0f statements at once", k.node, k.madeUp)
	}
}
