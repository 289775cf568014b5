package edge

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
)

// ownPolicy begins a page's Content-Security-Policy: nothing comes from
// elsewhere or goes there, and no other site frames the page.
const ownPolicy = "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// inline names a page's inline elements of a kind by their hashes (CSP, 2.3.1),
// so that the browser takes them and nothing that has found its way in. The
// elements have no attributes.
func inline(page []byte, kind string) (sources string) {
	for {
		_, rest, found := bytes.Cut(page, []byte("<"+kind+">"))
		if !found {
			return sources
		}
		text, after, _ := bytes.Cut(rest, []byte("</"+kind+">"))
		sum := sha256.Sum256(text)
		sources += " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
		page = after
	}
}
