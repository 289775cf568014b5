package edge

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
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
	page.policy = PagePolicy(page.identity(), " 'self'")
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
		asset.policy = PagePolicy(nil, " 'self'")
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

// The page below /docs keeps a key in memory, until it is reloaded or closed: what
// a browser stores, every script of this address can read for years. Whoever
// wants it stored ticks a box, and has it forgotten by taking the tick away. (The
// item "authorized" is Swagger UI's.)
const (
	docsHead = template.HTML(`<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
        .remember-key {
            display: block;
            max-width: 1460px;
            margin: 0 auto;
            padding: 10px 20px;
            font: 14px sans-serif;
            text-align: right;
        }
    </style>
<script>
	function remembersKey() {
		return localStorage.getItem("rememberKey") === "yes";
	}
	function rememberKey(yes) {
		window.ui.getConfigs().persistAuthorization = yes;
		if (yes) {
			localStorage.setItem("rememberKey", "yes");
			window.ui.authActions.persistAuthorizationIfNeeded();
		} else {
			forgetKey();
		}
	}
	function forgetKey() {
		localStorage.removeItem("rememberKey");
		localStorage.removeItem("authorized");
	}
	if (!remembersKey()) {
		forgetKey();
	}
</script>`)

	docsTop = template.HTML(`<label class="remember-key"><input type="checkbox" id="remember-key"> Remember the API key in this browser</label>
<script>
	const box = document.getElementById("remember-key");
	box.checked = remembersKey();
	box.onchange = () => rememberKey(box.checked);
</script>`)

	docsPersist = "remembersKey()" // Swagger UI's persistAuthorization
)

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
