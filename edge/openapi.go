package edge

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5/static"
	"github.com/swaggest/swgui/v5emb"
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
)

// docsPolicy is what the page below /docs may do. Its scripts and styles are
// files of this node and inline elements; its icons are data: URLs.
func docsPolicy(page []byte) string {
	return ownPolicy + "; img-src 'self' data:; font-src 'self' data:; script-src 'self'" + inline(page, "script") + "; style-src 'self'" + inline(page, "style")
}

//go:embed openapi.json
var openAPISource []byte

var openAPI = sync.OnceValue(func() *document {
	var compact bytes.Buffer
	if err := json.Compact(&compact, openAPISource); err != nil {
		panic(fmt.Sprintf("BUG: openapi.json: %v", err))
	}
	return newDocument("application/json", compact.Bytes())
})

// docs are the page and what it loads, by their paths.
var docs = sync.OnceValue(func() map[string]*document {
	page := newDocument("text/html; charset=utf-8", docsPage())
	page.policy = docsPolicy(page.identity())
	all := map[string]*document{docsPath: page, docsPath + "/": page}
	files, err := fs.ReadDir(static.FS, ".")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	for _, f := range files {
		text, err := fs.ReadFile(static.FS, f.Name())
		if err != nil {
			panic("BUG: " + err.Error())
		}
		name, compressed := strings.CutSuffix(f.Name(), ".gz")
		newAsset := newDocument
		if compressed {
			newAsset = newCompressedDocument
		}
		asset := newAsset(mime.TypeByExtension(path.Ext(name)), text)
		asset.policy = docsPolicy(nil)
		all[docsPath+"/"+name] = asset
	}
	return all
})

// docsPage is the page's HTML.
func docsPage() []byte {
	request, err := http.NewRequest(http.MethodGet, docsPath, nil)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	page := &written{}
	v5emb.NewHandlerWithConfig(swgui.Config{
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
	}).ServeHTTP(page, request)
	return page.Bytes()
}

// written keeps what a handler answers.
type written struct{ bytes.Buffer }

func (*written) Header() http.Header { return http.Header{} }
func (*written) WriteHeader(int)     {}
