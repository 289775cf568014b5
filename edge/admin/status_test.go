package admin

import (
	"bytes"
	"net/http/httptest"
	"strings"
	"testing"
)

// The page's policy does not run injected scripts, and lets nothing send data elsewhere.
func TestTheStatusPagesPolicy(t *testing.T) {
	w := httptest.NewRecorder()
	servePage(statusPage)(w, nil)
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
