package edge

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5emb"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttpadaptor"

	"listedge/cache"
)

// Two things are served to anyone, without a key: /openapi.json, the API's
// description for programs, written by hand in the file of that name and the
// yardstick of the tests; and /docs, the same description to read and to try
// out in a browser, whose scripts and styles are part of the binary. Neither
// loads anything from elsewhere: people enter API keys there, and a node may
// have no way out.

const (
	openAPIPath = "/openapi.json"
	docsPath    = "/docs"

	// referenceCache: long enough to spare a page's reload, short enough for an
	// upgrade to be seen.
	referenceCache = "public, max-age=300"
)

// docsPolicy is what the page below /docs may do. Its scripts and styles are
// files of this node and inline elements; its icons are data: URLs.
func docsPolicy(page []byte) string {
	return ownPolicy + "; img-src 'self' data:; font-src 'self' data:; script-src 'self'" + inline(page, "script") + "; style-src 'self'" + inline(page, "style")
}

//go:embed openapi.json
var openAPISource []byte

// reference is the document as it is served. Its body is never written to.
type reference struct {
	body []byte
	etag cache.EntityTag
}

var openAPI = sync.OnceValue(func() reference {
	var compact bytes.Buffer
	if err := json.Compact(&compact, openAPISource); err != nil {
		panic(fmt.Sprintf("BUG: openapi.json: %v", err))
	}
	return reference{compact.Bytes(), cache.TagOf(compact.Bytes())}
})

// serveOpenAPI answers GET and HEAD of /openapi.json.
func serveOpenAPI(ctx *fasthttp.RequestCtx) {
	doc := openAPI()
	h := &ctx.Response.Header
	h.SetBytesV(fasthttp.HeaderETag, doc.etag[:])
	h.Set(fasthttp.HeaderCacheControl, referenceCache)
	h.Set(fasthttp.HeaderXContentTypeOptions, "nosniff")
	if matchesETag(ctx.Request.Header.PeekAll(fasthttp.HeaderIfNoneMatch), doc.etag[:]) {
		ctx.SetStatusCode(fasthttp.StatusNotModified)
		return
	}
	ctx.SetContentType("application/json")
	ctx.Response.SetBodyRaw(doc.body)
}

var docs = sync.OnceValue(func() fasthttp.RequestHandler {
	return fasthttpadaptor.NewFastHTTPHandler(v5emb.NewHandlerWithConfig(swgui.Config{
		Title:       "listedge",
		SwaggerJSON: openAPIPath,
		BasePath:    docsPath,
		AppendHead:  docsHead,
		PrependHTML: docsTop,
		SettingsUI: map[string]string{
			"defaultModelsExpandDepth": "1",
			"displayRequestDuration":   "true",
			"persistAuthorization":     docsPersist,
			"tryItOutEnabled":          "true",
		},
	}))
})

// serveDocs answers GET and HEAD of /docs and of what is below it. Where there
// is nothing it leaves a bare 404, for the caller to put the error body on.
func serveDocs(ctx *fasthttp.RequestCtx) {
	// The library's validators have no quotes, which RFC 9110 demands: they are
	// put on and taken off here. Assets are small and come whole or not at all.
	asked := &ctx.Request.Header
	if tag := asked.Peek(fasthttp.HeaderIfNoneMatch); len(tag) > 0 {
		asked.SetBytesV(fasthttp.HeaderIfNoneMatch, bytes.Trim(bytes.TrimPrefix(tag, []byte("W/")), `"`))
	}
	asked.Del(fasthttp.HeaderIfMatch)
	asked.Del(fasthttp.HeaderRange)

	docs()(ctx)
	r := &ctx.Response
	r.Header.Del(fasthttp.HeaderAcceptRanges)
	if tag := r.Header.Peek(fasthttp.HeaderETag); len(tag) > 0 {
		r.Header.Set(fasthttp.HeaderETag, `"`+string(tag)+`"`)
	}
	switch r.StatusCode() {
	case fasthttp.StatusOK, fasthttp.StatusNotModified:
		r.Header.Set(fasthttp.HeaderCacheControl, referenceCache)
		r.Header.Set(fasthttp.HeaderContentSecurityPolicy, docsPolicy(nil))
		r.Header.Set(fasthttp.HeaderXContentTypeOptions, "nosniff")
		r.Header.Set(fasthttp.HeaderReferrerPolicy, "no-referrer")
		if bytes.HasPrefix(r.Header.ContentType(), []byte("text/html")) {
			r.Header.SetContentType("text/html; charset=utf-8")
			r.Header.Set(fasthttp.HeaderContentSecurityPolicy, docsPolicy(r.Body()))
		}
	default: // in plain text, or a redirect to an index
		r.ResetBody()
		for _, name := range []string{fasthttp.HeaderContentType, fasthttp.HeaderContentLength, fasthttp.HeaderLocation, fasthttp.HeaderVary} {
			r.Header.Del(name)
		}
		r.SetStatusCode(fasthttp.StatusNotFound)
	}
}
