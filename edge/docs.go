package edge

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"io/fs"
	"mime"
	"path"
	"strings"
	"sync"

	"github.com/swaggest/swgui/v5/static"
)

// Two documents need no key. /openapi.json describes the API, and tests check responses
// against it. /docs shows it in a browser, where a user can try requests. The scripts and
// styles of /docs are in the binary. They load nothing from elsewhere, because users
// enter API keys there, and because a node may have no Internet access.

const (
	openAPIPath = "/openapi.json"
	docsPath    = "/docs"
)

//go:embed openapi.json
var openAPISource []byte

var openAPI = sync.OnceValue(func() *document {
	var compact bytes.Buffer
	must(0, json.Compact(&compact, openAPISource))
	return newDocument("application/json", compact.Bytes())
})

// docs returns the page of /docs and the files that it loads, by their paths.
var docs = sync.OnceValue(func() map[string]*document {
	page := newDocument("text/html; charset=utf-8", docsPage)
	page.policy = PagePolicy(docsPage, " 'self'")
	all := map[string]*document{docsPath: page}
	for _, f := range must(fs.ReadDir(static.FS, ".")) {
		text := must(fs.ReadFile(static.FS, f.Name()))
		name, compressed := strings.CutSuffix(f.Name(), ".gz")
		newAsset := newDocument
		if compressed {
			newAsset = newCompressedDocument
		}
		asset := newAsset(mime.TypeByExtension(path.Ext(name)), text)
		asset.policy = PagePolicy(nil, " 'self'")
		all[docsPath+"/"+name] = asset
	}
	return all
})

// docs.html keeps an API key in memory until it is reloaded or closed, because every
// script of this address can read what a browser stores, for years. A user who wants it
// stored ticks a box, and unticks it to delete the key. (The item "authorized" is Swagger
// UI's.)
//
//go:embed docs.html
var docsPage []byte

// PagePolicy is the Content-Security-Policy of a page of this node: the page
// loads and sends nothing elsewhere, and no other site frames it. files says
// where its scripts, styles, icons and fonts may come from, besides the page
// itself and data: URLs.
func PagePolicy(page []byte, files string) string {
	return "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
		"; img-src" + files + " data:; font-src" + files + " data:" +
		"; script-src" + files + inlineHashes(page, "script") + "; style-src" + files + inlineHashes(page, "style")
}

// inlineHashes lists the hashes of the page's inline elements of a kind (CSP,
// 2.3.1), so that the browser runs these and no injected ones. The elements have
// no attributes.
func inlineHashes(page []byte, kind string) (sources string) {
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
