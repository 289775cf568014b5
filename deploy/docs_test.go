package deploy_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// A key that is entered is forgotten with the page, unless whoever entered it wants
// it remembered, for as long as that is wanted. A request is made from the page. The node is
// behind a proxy that removes a prefix, of which the node knows nothing.
func TestTheReferenceAnswers(t *testing.T) {
	f := startFleet(t, 1)
	proxy := httptest.NewServer(http.StripPrefix("/api/lists", httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: f.nodes[0].public})))
	defer proxy.Close()
	public, page := proxy.Listener.Addr().String(), openTab(t)
	page.resize(t, 1280, "light")
	enter := func() {
		t.Helper()
		page.do(t, chromedp.Click(".btn.authorize.unlocked"),
			chromedp.SendKeys(".auth-container input", f.key),
			chromedp.Click(".auth-btn-wrapper .authorize"),
			chromedp.WaitVisible(".auth-btn-wrapper .btn:not(.authorize):not(.btn-done)"),
			chromedp.Click(".btn-done"))
	}
	stored := func(want bool) {
		t.Helper()
		page.await(t, fmt.Sprintf(`JSON.stringify({...localStorage}).includes(%q) === %v`, f.key, want))
	}
	page.do(t, chromedp.Navigate(proxy.URL+"/api/lists/docs"), chromedp.WaitVisible(".opblock"))
	shown := evaluate[float64](t, page, `performance.now()`)
	page.await(t, `document.readyState === "complete"`)
	// How long that takes depends on the machine, what it loads does not: the page, its
	// style, two scripts, a picture and the description, from here (keptQuiet).
	page.mu.Lock()
	loaded := slices.DeleteFunc(slices.Clone(page.requested), func(address string) bool { return strings.HasPrefix(address, "data:") })
	bytes := page.bytes
	page.mu.Unlock()
	t.Logf("the operations were there after %.0f ms, %d requests and %.0f kB", shown, len(loaded), bytes/1000)
	if len(loaded) > 6 || bytes > 600_000 {
		t.Errorf("the page loads %.0f bytes by %q", bytes, loaded)
	}
	// Above them stand its name and what it is.
	if first := evaluate[string](t, page, `document.querySelector("h1").textContent + " " + document.querySelector("h1 + p").textContent`); !strings.HasPrefix(first,
		evaluate[string](t, page, `document.title`)+" Two lists of a workspace") {
		t.Errorf("the page begins with %q", first)
	}
	// What an integrator must know, and cannot guess.
	for _, says := range []string{"docs/clients", "end where your stored pages end", "cache: \"no-cache\""} {
		page.await(t, fmt.Sprintf(`document.querySelector(".info .description").textContent.includes(%q)`, says))
	}
	for scheme, dark := range map[string]bool{"dark": true, "light": false} {
		page.resize(t, 1280, scheme)
		// The operations are on the first screen, and the page is as dark as its reader's others.
		page.await(t, `[...document.querySelectorAll(".opblock")].every(e => e.getBoundingClientRect().bottom < innerHeight)`)
		page.await(t, fmt.Sprintf(`/^invert/.test(getComputedStyle(document.querySelector(".swagger-container")).filter) === %v`, dark))
	}
	enter()
	stored(false)
	page.do(t, chromedp.Reload())
	enter()
	page.do(t, chromedp.Click("#remember-key"))
	stored(true)
	page.do(t, chromedp.Reload(), chromedp.WaitVisible(".btn.authorize.locked"), chromedp.Click("#remember-key"))
	stored(false)
	page.do(t, chromedp.Reload(), chromedp.Click("#remember-key"))
	enter()
	stored(true)
	page.do(t, chromedp.Reload(), chromedp.WaitVisible(".btn.authorize.locked"),
		chromedp.Click("#operations-items-listItems .opblock-summary-control"),
		chromedp.WaitVisible(`#operations-items-listItems tr[data-param-name="limit"]`), // the page has followed the references by now
		chromedp.Click("#operations-items-listItems .execute"),
		chromedp.WaitVisible("#operations-items-listItems .live-responses-table .highlight-code code"))
	answer := `document.querySelector("#operations-items-listItems .live-responses-table")`
	page.await(t, answer+`.querySelector("tbody .response-col_status").textContent.startsWith("200")`)
	page.await(t, answer+`.querySelector(".highlight-code code").textContent.includes('"sellingPrice"')`)
	page.await(t, `/x-ratelimit-remaining: \d+/.test(`+answer+`.textContent)`)
	page.keptQuiet(t, public)
}
