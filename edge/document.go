package edge

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"sync"

	"github.com/valyala/fasthttp"

	"listedge/cache"
)

// document is what anybody may read without a key. Its bytes are made once and
// shared by all answers: a client that does not read holds none of its own.
type document struct {
	contentType string
	policy      string // Content-Security-Policy; "" = none
	etag        cache.EntityTag
	identity    func() []byte
	gzip        []byte // nil = none, it would be no shorter
}

// newDocument makes a document of its text.
func newDocument(contentType string, text []byte) *document {
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	if _, err := w.Write(text); err != nil {
		panic("BUG: " + err.Error()) // a buffer takes everything
	}
	if err := w.Close(); err != nil {
		panic("BUG: " + err.Error())
	}
	d := &document{contentType: contentType, etag: cache.TagOf(text), identity: func() []byte { return text }}
	if compressed.Len() < len(text) {
		d.gzip = compressed.Bytes()
	}
	return d
}

// newCompressedDocument makes a document of its gzip form. It is inflated when
// a client first wants it so.
func newCompressedDocument(contentType string, compressed []byte) *document {
	return &document{contentType: contentType, etag: cache.TagOf(compressed), gzip: compressed, identity: sync.OnceValue(func() []byte {
		r, err := gzip.NewReader(bytes.NewReader(compressed))
		if err != nil {
			panic(fmt.Sprintf("BUG: %s: %v", contentType, err))
		}
		text, err := io.ReadAll(r)
		if err != nil {
			panic(fmt.Sprintf("BUG: %s: %v", contentType, err))
		}
		return text
	})}
}

// documentCache: long enough to spare a page's reload, short enough for an
// upgrade to be seen.
const documentCache = "public, max-age=300"

// documentUnit is how many bytes of a document one token of the client's
// address buys.
const documentUnit = 64 << 10

// serveDocument answers GET and HEAD, if the client's address has not asked for
// too much without a key.
func (s *Server) serveDocument(x *exchange, d *document) failure {
	if x.body {
		return failure{problem: bodyTooLarge}
	}
	notModified := matchesETag(x.asked.noneMatch, d.etag[:])
	var body []byte
	compressed := d.gzip != nil && acceptsGzip(x.asked.encoding)
	switch {
	case notModified:
	case compressed:
		body = d.gzip
	default:
		body = d.identity()
	}
	if f := s.keyless(x, 1+len(body)/documentUnit); f.problem != nil {
		return f
	}
	r := &x.http.Response
	r.Header.SetBytesV(fasthttp.HeaderETag, d.etag[:])
	r.Header.Set(fasthttp.HeaderCacheControl, documentCache)
	if d.gzip != nil {
		r.Header.Set(fasthttp.HeaderVary, fasthttp.HeaderAcceptEncoding)
	}
	r.Header.Set(fasthttp.HeaderXContentTypeOptions, "nosniff")
	if d.policy != "" {
		r.Header.Set(fasthttp.HeaderContentSecurityPolicy, d.policy)
		r.Header.Set(fasthttp.HeaderReferrerPolicy, "no-referrer")
	}
	if notModified {
		r.SetStatusCode(fasthttp.StatusNotModified)
		return failure{}
	}
	r.Header.SetContentType(d.contentType)
	if compressed {
		r.Header.Set(fasthttp.HeaderContentEncoding, "gzip")
	}
	r.SetBodyRaw(body)
	return failure{}
}

// keyless takes tokens from the client's address for an answer that needs no
// key.
func (s *Server) keyless(x *exchange, tokens int) failure {
	if retry := s.guard.keyless(s.clientAddress(x), tokens); retry > 0 {
		return failure{problem: noKeyLimited, retry: retry}
	}
	return failure{}
}
