package edge

import (
	"bytes"
	"compress/gzip"
	"io"
	"path"
	"sync"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/metrics"
)

// document is a page of the documentation, which needs no key. All responses share its
// bytes, so a response to a slow client takes no memory.
type document struct {
	contentType string
	policy      string // Content-Security-Policy; "" = none
	etag        cache.EntityTag
	identity    func() []byte
	gzip        []byte // nil = the gzip form is not shorter
}

// newDocument makes a document from its text.
func newDocument(contentType string, text []byte) *document {
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	must(w.Write(text))
	must(0, w.Close())
	d := &document{contentType: contentType, etag: cache.TagOf(text), identity: func() []byte { return text }}
	if compressed.Len() < len(text) {
		d.gzip = compressed.Bytes()
	}
	return d
}

// newCompressedDocument makes a document from its gzip form. It inflates the form when a
// client first needs the text.
func newCompressedDocument(contentType string, compressed []byte) *document {
	return &document{contentType: contentType, etag: cache.TagOf(compressed), gzip: compressed, identity: sync.OnceValue(func() []byte {
		return must(io.ReadAll(must(gzip.NewReader(bytes.NewReader(compressed)))))
	})}
}

// must returns the value of a call that cannot fail, because it uses only data of the
// binary.
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

// serveDocs answers every path that has no route: with a document, if the path is /docs or
// below it, otherwise with 404.
func (s *Server) serveDocs(x *exchange) failure {
	d := s.docs[string(x.path)]
	switch {
	case d != nil && (x.http.IsGet() || x.http.IsHead()):
		return s.serveDocument(x, d)
	case d != nil:
		return failure{problem: wrongMethod}
	}
	x.route = metrics.RouteNone
	if f := s.limitPublic(x, 1); f.problem != nil {
		return f
	}
	f := failure{problem: notFound}
	if len(x.path) <= 2*s.longestPath { // a base URL that ends in a slash makes two of it
		if near := path.Clean(string(x.path)); s.paths[near] {
			f.message = "There is nothing at this address; use " + near + "."
		}
	}
	return f
}

// serveDocument answers GET and HEAD, within the limit of the client's address.
func (s *Server) serveDocument(x *exchange, d *document) failure {
	if x.hasBody {
		return failure{problem: bodyTooLarge}
	}
	notModified := matchesETag(x.headers.noneMatch, d.etag[:])
	compressed := d.gzip != nil && acceptsGzip(x.headers.encoding)
	var body []byte
	switch {
	case notModified:
	case compressed:
		body = d.gzip
	default:
		body = d.identity()
	}
	if f := s.limitPublic(x, 1+len(body)/documentUnit); f.problem != nil {
		return f
	}
	r := x.conn.newResponse(fasthttp.StatusOK)
	r.kind = d.contentType
	r.add(fasthttp.HeaderETag, string(d.etag[:]))
	r.add(fasthttp.HeaderCacheControl, documentCache)
	if d.gzip != nil {
		r.add(fasthttp.HeaderVary, fasthttp.HeaderAcceptEncoding)
	}
	if d.policy != "" {
		r.add(fasthttp.HeaderContentSecurityPolicy, d.policy)
		r.add(fasthttp.HeaderReferrerPolicy, "no-referrer")
	}
	switch {
	case notModified:
		r.status = fasthttp.StatusNotModified
	case compressed:
		r.add(fasthttp.HeaderContentEncoding, "gzip")
	}
	r.setBody(body)
	return failure{}
}

// limitPublic takes tokens from the client's address for a response that needs no
// key.
func (s *Server) limitPublic(x *exchange, tokens int) failure {
	if retry := s.guard.public(s.clientAddress(x), tokens); retry > 0 {
		return failure{problem: noKeyLimited, retry: retry}
	}
	return failure{}
}
