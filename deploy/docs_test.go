package deploy_test

import (
	"testing"

	"github.com/chromedp/chromedp"
)

// A key is entered once, and a request is made from the page.
func TestTheReferenceAnswers(t *testing.T) {
	f := startFleet(t, 1)
	n, page := f.nodes[0], openTab(t)
	page.resize(t, 1280, "light")
	page.do(t, chromedp.Navigate("http://"+n.public+"/docs"),
		chromedp.Click(".btn.authorize"),
		chromedp.SendKeys(".auth-container input", f.key),
		chromedp.Click(".auth-btn-wrapper .authorize"),
		chromedp.WaitVisible(".auth-btn-wrapper .btn:not(.authorize):not(.btn-done)"),
		chromedp.Reload(), // whoever comes back need not enter it again
		chromedp.Click("#operations-items-listItems .opblock-summary-control"),
		chromedp.WaitVisible(`#operations-items-listItems tr[data-param-name="limit"]`), // the page has followed the references by now
		chromedp.Click("#operations-items-listItems .execute"),
		chromedp.WaitVisible("#operations-items-listItems .live-responses-table .highlight-code code"))
	answer := `document.querySelector("#operations-items-listItems .live-responses-table")`
	page.await(t, answer+`.querySelector("tbody .response-col_status").textContent.startsWith("200")`)
	page.await(t, answer+`.querySelector(".highlight-code code").textContent.includes('"sellingPrice"')`)
	page.await(t, `/x-ratelimit-remaining: \d+/.test(`+answer+`.textContent)`)
	page.picture(t, "docs")
	page.keptQuiet(t, n.public)
}
