package deploy_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// tab is a page in a real browser, with its console messages and its requests.
type tab struct {
	context.Context

	mu        sync.Mutex // guards what follows
	said      []string   // errors and warnings of the console, exceptions
	requested []string   // addresses
	bytes     float64    // that came from the network
}

// browser is the program that opens pages: one of those that install.sh
// takes for Chromium.
func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome",
		"/Applications/Chromium.app/Contents/MacOS/Chromium", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("there is no Chromium (deploy/install.sh installs it)")
	return ""
}

// openTab starts a browser with an empty profile, which sends no requests of its own.
func openTab(t *testing.T) *tab {
	t.Helper()
	allocated, release := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(browser(t)), chromedp.UserDataDir(t.TempDir()), chromedp.Env("TMPDIR="+t.TempDir()), chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("headless", true), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true))
	ctx, end := chromedp.NewContext(allocated)
	b := &tab{Context: ctx}
	t.Cleanup(func() {
		end()
		release() // waits until it has ended
	})
	if err := chromedp.Listen(ctx, b.note); err != nil {
		t.Fatalf("start Chromium: %v", err)
	}
	for _, enable := range []func() error{
		func() (err error) { _, err = chromedp.Call(ctx, network.Enable, network.EnableParams{}); return err },
		func() (err error) { _, err = chromedp.Call(ctx, log.Enable, cdp.Empty{}); return err },
		func() (err error) { _, err = chromedp.Call(ctx, runtime.Enable, cdp.Empty{}); return err },
	} {
		must(enable())
	}
	return b
}

// note records those of the browser's events that tests check.
func (b *tab) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requested = append(b.requested, e.Request.URL)
	case *network.EventLoadingFinished:
		b.bytes += e.EncodedDataLength
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.said = append(b.said, e.Entry.Text+" "+e.Entry.URL)
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			for _, a := range e.Args {
				b.said = append(b.said, string(a.Value)+a.Description)
			}
		}
	case *runtime.EventExceptionThrown:
		b.said = append(b.said, e.ExceptionDetails.Text+" "+e.ExceptionDetails.Exception.Description)
	}
}

// do runs actions in the page.
func (b *tab) do(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatalf("%v; the page said %q", err, b.complaints())
	}
}

// evaluate is the value of an expression of the page's language.
func evaluate[T any](t *testing.T, b *tab, expression string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v; the page said %q", expression, err, b.complaints())
	}
	return value
}

// await waits until an expression of the page's language is true. What it reads may not be on the page yet.
func (b *tab) await(t *testing.T, expression string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the page said %q and shows %s", b.complaints(), evaluate[string](t, b, `document.body.innerText.replace(/\s+/g, " ")`))
		}
	}()
	test := `(() => { try { return ` + expression + `; } catch (e) { if (e instanceof TypeError) return false; throw e; } })()`
	within(t, patience, expression, func() bool { return evaluate[bool](t, b, test) })
}

// resize makes the page as wide as a phone's or a desk's, by day or by night.
func (b *tab) resize(t *testing.T, width int64, scheme string) {
	t.Helper()
	b.do(t, chromedp.EmulateViewport(width, 800, func(screen *emulation.SetDeviceMetricsOverrideParams, _ *emulation.SetTouchEmulationEnabledParams) {
		screen.Mobile = width < 600
	}))
	night := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	must1(chromedp.Call(b, emulation.SetEmulatedMedia, night))
}

func (b *tab) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said
}

// keptQuiet fails the test if the page logged an error, or sent a request to another host.
func (b *tab) keptQuiet(t *testing.T, host string) {
	t.Helper()
	for _, s := range b.complaints() {
		t.Errorf("the page said: %s", s)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requested) == 0 {
		t.Error("the page sent no request")
	}
	for _, a := range b.requested {
		if u, err := url.Parse(a); err != nil || u.Scheme != "data" && u.Host != host {
			t.Errorf("the page requested %s", a)
		}
	}
}

// A key that is entered is forgotten with the page, unless whoever entered it wants
// it remembered, for as long as that is wanted. A request is made from the page. The node is
// behind a proxy that removes a prefix, of which the node knows nothing.
func TestTheReferenceAnswers(t *testing.T) {
	t.Parallel()
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
	if first := evaluate[string](t, page, `document.querySelector("h1").textContent + " " + document.querySelector("h1 + p").textContent`); !strings.HasPrefix(
		first,
		evaluate[string](t, page, `document.title`)+" Lists, page by page.") {
		t.Errorf("the page begins with %q", first)
	}
	// What an integrator must know, and cannot guess.
	for _, says := range []string{"docs/clients", "adds one to the mark", "cache: \"no-cache\""} {
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
