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
	ofKeys      = []promise{revocation, keyWorks, changedKey, scheduled, otherKeys, wrongServer}
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
	if k.isOld(u, oldest) {
		k.good[u.n] = good{}
		return
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

// judgeUnavailable judges that a key could not be looked up.
func (w *run) judgeUnavailable(u *use) {
	k := u.node.keys
	waited, failed := k.trouble(u)
	if u.n >= world.Keys-world.Forms && u.arrived.Sub(k.noForms) < keyBound {
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
