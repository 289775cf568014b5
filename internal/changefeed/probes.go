package changefeed

import "time"

// Probes are those that a node has sent and no heartbeat has echoed. The zero
// value has none. Not safe for use by several goroutines.
type Probes struct{ sent map[uint64]time.Time }

// Sent remembers that the nonce was chosen at that moment. What was sent
// probeLife before will not be echoed any more, and is forgotten.
func (p *Probes) Sent(nonce uint64, at time.Time) {
	if p.sent == nil {
		p.sent = map[uint64]time.Time{}
	}
	p.forget(at.Add(-probeLife))
	p.sent[nonce] = at
}

// Echoed returns when the probe was sent whose nonce a heartbeat echoes, and
// forgets it and all before it: they prove no more. It is false for a nonce of
// somebody else, of long ago, or that was echoed before.
func (p *Probes) Echoed(nonce uint64) (sent time.Time, ours bool) {
	if sent, ours = p.sent[nonce]; ours {
		p.forget(sent)
	}
	return sent, ours
}

// Forget forgets them all.
func (p *Probes) Forget() { clear(p.sent) }

func (p *Probes) forget(until time.Time) {
	for nonce, at := range p.sent {
		if !at.After(until) {
			delete(p.sent, nonce)
		}
	}
}
