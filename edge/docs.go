package edge

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html"
	"io"
	"io/fs"
	"mime"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/swaggest/swgui/v5/static"
	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/list"
)

// Two documents need no key. /openapi.json describes the API, and tests check responses
// against it. It is made of the lists. /docs shows it in a browser, where a user can try requests. The scripts and
// styles of /docs are in the binary. They load nothing from elsewhere, because users
// enter API keys there, and because a node may have no Internet access.

const (
	openAPIPath = "/openapi.json"
	docsPath    = "/docs"
)

// documents returns all documents by their paths: the two, and the files that /docs loads. Each is made when it is first asked for.
func documents(lists *list.Set) map[string]func() *document {
	all := map[string]func() *document{
		openAPIPath: sync.OnceValue(func() *document { return newDocument("application/json", "", OpenAPI(lists)) }),
		docsPath: sync.OnceValue(func() *document {
			shown := bytes.ReplaceAll(docsPage, []byte("{{title}}"), []byte(html.EscapeString(titleOf(lists))))
			return newDocument("text/html; charset=utf-8", PagePolicy(shown, " 'self'"), shown)
		}),
	}
	for _, f := range must(fs.ReadDir(static.FS, ".")) {
		all[docsPath+"/"+strings.TrimSuffix(f.Name(), ".gz")] = sync.OnceValue(func() *document { return docsFile(f.Name()) })
	}
	return all
}

// docsFile makes a file that /docs loads.
func docsFile(file string) *document {
	text := must(fs.ReadFile(static.FS, file))
	name, compressed := strings.CutSuffix(file, ".gz")
	d := newDocument(mime.TypeByExtension(path.Ext(name)), PagePolicy(nil, " 'self'"), text)
	if compressed { // text is the gzip form
		d.identity, d.gzip = must(io.ReadAll(must(gzip.NewReader(bytes.NewReader(text))))), text
	}
	return d
}

// docsPage is /docs. It keeps an API key in memory until it is reloaded or closed, because every
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
	for _, element := range regexp.MustCompile("(?s)<"+kind+">(.*?)</"+kind+">").FindAllSubmatch(page, -1) {
		sum := sha256.Sum256(element[1])
		sources += " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return sources
}

// document is a page of the documentation, which needs no key. All responses share its
// bytes, so a response to a slow client takes no memory.
type document struct {
	contentType    string
	policy         string // Content-Security-Policy; "" = none
	etag           cache.EntityTag
	identity, gzip []byte
}

// newDocument makes a document from its text.
func newDocument(contentType, policy string, text []byte) *document {
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	must(w.Write(text))
	must(0, w.Close())
	return &document{contentType, policy, cache.TagOf(text), text, compressed.Bytes()}
}

// must returns the value of a call that cannot fail.
func must[T any](value T, err error) T {
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return value
}

// documentCache lets browsers reuse a document for five minutes. It is short, so that
// clients soon see the documents of a new version.
const documentCache = "public, max-age=300"

// documentUnit is how many bytes of a document cost one token of the client's
// address.
const documentUnit = 64 << 10

// serve answers GET and HEAD of a document, within the limit of the client's address.
func (d *document) serve(x *exchange) *failure {
	if x.hasBody {
		return &failure{problem: bodyTooLarge}
	}
	r, body := x.conn.response.start(fasthttp.StatusOK), d.identity
	switch {
	case matchesETag(x.headers.noneMatch, d.etag[:]):
		r.status, body = fasthttp.StatusNotModified, nil
	case acceptsGzip(x.headers.encoding):
		r.lines.str(fasthttp.HeaderContentEncoding, "gzip")
		body = d.gzip
	}
	if f := x.server.guard.limit(x, publicResponses, 1+len(body)/documentUnit, noKeyLimited); f != nil {
		return f
	}
	r.kind = d.contentType
	r.lines.str(fasthttp.HeaderETag, d.etag.String())
	r.lines.str(fasthttp.HeaderCacheControl, documentCache)
	r.lines.str(fasthttp.HeaderVary, fasthttp.HeaderAcceptEncoding)
	if d.policy != "" {
		r.lines.str(fasthttp.HeaderContentSecurityPolicy, d.policy)
		r.lines.str(fasthttp.HeaderReferrerPolicy, "no-referrer")
	}
	r.setBody(body)
	return nil
}
