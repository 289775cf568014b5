package deploy_test

import (
	"context"
	"net/url"
	"os/exec"
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
