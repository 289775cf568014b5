package edge

import (
	"bytes"
	"net/http/httptest"
	"strings"
	"testing"
)

// Whatever found its way into the page would not be run, and could not tell
// anyone.
func TestTheStatusPagesPolicy(t *testing.T) {
	w := httptest.NewRecorder()
	serveStatus(w, nil)
	policy := w.Header().Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'none'; connect-src 'self';") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") {
		t.Error(policy)
	}
	for _, kind := range []string{"script", "style"} {
		if n := bytes.Count(statusPage, []byte("<"+kind)); n != 1 || strings.Count(policy, kind+"-src 'sha256-") != 1 {
			t.Errorf("%d elements of %s, policy %s", n, kind, policy)
		}
	}
}

func TestInlineElementsAreNamedByTheirHashes(t *testing.T) {
	// As openssl dgst -sha256 -binary | base64 has it: the example of CSP 3, and nothing.
	got := inline([]byte("<p><script>alert('Hello, world.');</script><script src=x></script><script></script>"), "script")
	if want := " 'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
