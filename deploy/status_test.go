package deploy_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
)

// beside is the text beside a label of a card.
func beside(card, label string) string {
	return fmt.Sprintf(`([...document.querySelectorAll("#%s dl div")].find(r => !r.hidden && r.firstChild.textContent === %q)?.lastChild.textContent ?? "")`, card, label)
}

// big is a card's first number.
func big(card string) string {
	return fmt.Sprintf(`(document.querySelector("#%s .big b")?.textContent ?? "")`, card)
}

// load asks for pages from several at once until stopped.
func load(t *testing.T, n *node) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var asking sync.WaitGroup
	for i := range 3 {
		asking.Go(func() {
			for at := 0; ; at++ {
				select {
				case <-done:
					return
				default:
				}
				_, _, _ = get(fmt.Sprintf("http://%s/v1/items?limit=%d", n.public, 1+(at+i)%20), n.fleet.key)
			}
		})
	}
	return sync.OnceFunc(func() {
		close(done)
		asking.Wait()
	})
}

func TestTheStatusPageIsLive(t *testing.T) {
	f := startFleet(t, 2)
	n, page := f.nodes[0], openTab(t)
	page.resize(t, 1280, "light")
	page.do(t, chromedp.Navigate("http://"+n.admin+"/"))
	page.await(t, `document.querySelector("#state").textContent === "Healthy"`)
	page.await(t, big("traffic")+` === "0"`)
	if said := evaluate[string](t, page, big("hits")); said != "–" {
		t.Errorf("a hit ratio without a page: %s", said)
	}

	stop := load(t, n)
	defer stop()
	for name, expression := range map[string]string{
		"requests":          `parseFloat(` + big("traffic") + `) > 5`,
		"hit ratio":         `parseFloat(` + big("hits") + `) > 50`,
		"from memory":       `parseFloat(` + beside("hits", "memory") + `) > 50`,
		"p50":               `/^[1-9].* (µs|ms)$/.test(` + big("latency") + `)`,
		"p50 from memory":   `/^[1-9].* (µs|ms) · [1-9].* (µs|ms|s)$/.test(` + beside("latency", "memory") + `)`,
		"mode":              big("freshness") + ` === "Followed"`,
		"epoch":             `/\w+\.\w+\.\w+/.test(` + beside("freshness", "epoch") + `)`,
		"decisions":         `parseFloat(` + big("limiter") + `) > 5`,
		"calls per request": `/^[0-9.]+$/.test(` + beside("limiter", "Redis calls/request") + `)`,
		"nodes":             beside("limiter", "nodes in the fleet") + ` === "2"`,
		"cached":            `parseFloat(` + big("memory") + `) > 0`,
		"keys":              big("keys") + ` === "1"`,
		"a curve":           `document.querySelector("#traffic path.first").getAttribute("d").split("L").length > 3`,
	} {
		t.Log(name)
		page.await(t, expression)
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{360, 1280} {
			page.resize(t, width, scheme)
			if wide := evaluate[int64](t, page, `document.documentElement.scrollWidth`); wide > width {
				t.Errorf("at %d pixels the page is %d wide", width, wide)
			}
			page.picture(t, fmt.Sprintf("status-%d-%s", width, scheme))
		}
	}
	stop()
	page.await(t, big("traffic")+` === "0"`)
	page.keptQuiet(t, n.admin)

	// Degraded, it says what is wrong; dead, that it is.
	if err := f.redis.Kill(); err != nil {
		t.Fatal(err)
	}
	get("http://"+n.public+"/v1/items?limit=99", f.key)
	page.await(t, `document.querySelector("#state").textContent === "Degraded" && /Redis/.test(document.querySelector("#problems").textContent)`)
	page.await(t, `/redis is away/.test(document.querySelector("#log").textContent)`)
	page.resize(t, 1280, "dark")
	page.picture(t, "status-degraded")
	n.stop(t)
	page.await(t, `document.querySelector("#state").textContent === "No answer"`)
	page.picture(t, "status-dead")
	n.start(t)
}
