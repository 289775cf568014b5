package changefeed

import (
	"testing"
	"time"
)

// A probe proves once, and nothing sent before it proves after it.
func TestAProbeIsEchoedOnceAndInOrder(t *testing.T) {
	var p Probes
	if _, ours := p.Echoed(1); ours {
		t.Error("a nonce that was never sent is ours")
	}
	start := time.Now()
	for nonce := range uint64(5) {
		p.Sent(nonce, start.Add(time.Duration(nonce)*time.Second))
	}
	if sent, ours := p.Echoed(3); !ours || !sent.Equal(start.Add(3*time.Second)) {
		t.Fatal(sent, ours)
	}
	for nonce, want := range []bool{false, false, false, false, true} {
		if _, ours := p.Echoed(uint64(nonce)); ours != want {
			t.Errorf("nonce %d: %v, want %v", nonce, ours, want)
		}
	}
	p.Sent(7, start)
	p.Forget()
	if _, ours := p.Echoed(7); ours {
		t.Error("a forgotten one is ours")
	}
}

// While nobody echoes, a node that probes on keeps no more than probeLife's.
func TestProbesThatAreNeverEchoedAreForgotten(t *testing.T) {
	var p Probes
	start := time.Now()
	for nonce := range uint64(1000) {
		p.Sent(nonce, start.Add(time.Duration(nonce)*time.Second))
	}
	if most := int(probeLife / time.Second); len(p.sent) != most {
		t.Errorf("%d are remembered, want %d", len(p.sent), most)
	}
}
