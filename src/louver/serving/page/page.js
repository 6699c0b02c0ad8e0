// The page of a server: a text in, and what the model made of it. It asks the same routes as everybody else, needs
// nothing from elsewhere, and puts texts into the page as text only.

const TOKENS_SHOWN = 2000
const $ = id => document.getElementById(id)
const models = new Map()

/** Make an element with a class, text and children. */
function made(name, { css = '', text = '', ...rest } = {}, ...children) {
  const found = Object.assign(document.createElement(name), rest)
  if (css) found.className = css
  if (text) found.textContent = text
  found.append(...children)
  return found
}

/** Ask the server; throw its own words if it refuses. */
async function ask(path, body) {
  const key = $('key').value
  const headers = { ...(body && { 'content-type': 'application/json' }), ...(key && { authorization: `Bearer ${key}` }) }
  let reply
  try {
    reply = await fetch(path, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body) })
  } catch {
    throw new Error('the server does not answer; is it running?')
  }
  const found = await reply.json().catch(() => ({}))
  if (reply.status === 401) $('key-row').hidden = false
  if (!reply.ok) throw new Error(found.error?.message ?? found.error ?? `the server said ${reply.status}`)
  return found
}

function told(error) {
  $('error').textContent = error ? error.message : ''
  $('error').hidden = !error
}

/** Say which models there are, and what each one reads. */
async function open() {
  try {
    const { data } = await ask('v1/models')
    const infos = await Promise.all(data.map(({ id }) => ask(`info?model=${encodeURIComponent(id)}`)))
    for (const info of infos) models.set(info.model_id, info)
    $('model').replaceChildren(...[...models.keys()].map(name => made('option', { text: name, value: name })))
    chosen()
    told()
  } catch (error) {
    told(error)
  }
}

function task(info) {
  return Object.keys(info.model_type)[0]
}

function chosen() {
  const info = models.get($('model').value)
  if (!info) return
  const names = { embedding: 'embeds', classifier: 'classifies', tag: 'finds spans', answer: 'answers questions' }
  $('about').textContent = `${names[task(info)] ?? task(info)}, reads ${info.max_input_length.toLocaleString()} tokens`
  const paired = info.inputs === 'pair'
  $('second-row').hidden = !paired
  $('first-name').textContent = task(info) === 'answer' ? 'Question' : paired ? 'First text' : 'Text'
  $('second-name').textContent = task(info) === 'answer' ? 'Text that answers it' : 'Second text'
}

function sized() {
  const count = $('first').value.length + ($('second-row').hidden ? 0 : $('second').value.length)
  $('size').textContent = count ? `${count.toLocaleString()} characters` : ''
}

async function answered(event) {
  event.preventDefault()
  const name = $('model').value
  if (!models.size) return open()
  const info = models.get(name)
  const first = $('first').value
  const text = $('second-row').hidden ? first : [first, $('second').value]
  const policy = $('truncate').value
  $('ask').disabled = true
  told()
  try {
    const began = performance.now()
    const found = await ask('answer', { inputs: [text], model: name, ...(policy && { truncate: policy }) })
    const took = performance.now() - began
    const [one] = found.answers
    if (one.error) throw new Error(one.error)
    show(one, info, first, $('second').value)
    showTimes(found.timing_ms, took)
    await showTokens(name, first, one, policy || info.truncation, info)
    $('result').hidden = false
  } catch (error) {
    $('result').hidden = true
    told(error)
  } finally {
    $('ask').disabled = false
  }
}

function show(one, info, first, second) {
  const parts = []
  if (one.label !== undefined) parts.push(made('p', { css: 'headline', text: one.label }))
  if (one.labels !== undefined) parts.push(made('p', { css: 'headline', text: one.labels.join(', ') || 'none of the labels' }))
  if (one.value !== undefined) parts.push(made('p', { css: 'headline', text: String(one.value) }))
  if (one.scores) parts.push(bars(one.scores))
  if (one.spans) parts.push(...spans(first, one.spans))
  if (one.answer !== undefined) parts.push(...answer(second, one))
  if (one.embedding) parts.push(...embedding(one.embedding))
  $('answer').replaceChildren(...parts)
  const all = one.tokens_read + one.tokens_cut
  const cut = one.tokens_cut ? `${one.tokens_cut.toLocaleString()} cut` : 'nothing cut'
  $('read').replaceChildren(
    made('p', { text: `${one.tokens_read.toLocaleString()} of ${all.toLocaleString()} tokens read, ${cut}` }),
    made('meter', { max: Math.max(all, 1), value: one.tokens_read, title: 'share of the text that was read' }),
  )
}

function bars(scores) {
  const rows = Object.entries(scores).sort((a, b) => b[1] - a[1])
  return made('div', { css: 'bars' }, ...rows.flatMap(([name, score]) => [
    made('span', { css: 'name', text: name }),
    made('meter', { max: 1, value: score, title: name }),
    made('span', { text: `${(100 * score).toFixed(1)} %` }),
  ]))
}

/** Mark stretches of a text; places count characters, as Python does, and not UTF-16 units. */
function marked(text, stretches) {
  const characters = [...text]
  const kinds = [...new Set(stretches.map(one => one.label))]
  const parts = []
  let done = 0
  for (const { start, end, label } of stretches) {
    if (start < done) continue
    parts.push(characters.slice(done, start).join(''))
    const name = label ? [made('small', { text: label })] : []
    parts.push(made('mark', { css: `kind-${Math.max(0, kinds.indexOf(label)) % 5}` }, characters.slice(start, end).join(''), ...name))
    done = end
  }
  return made('p', { css: 'spans' }, ...parts, characters.slice(done).join(''))
}

function spans(text, found) {
  const count = found.length === 1 ? 'one span' : `${found.length} spans`
  return [made('p', { css: 'faint', text: found.length ? count : 'no span in this text' }), marked(text, found)]
}

function answer(text, one) {
  const said = one.answer ? one.answer.text : 'the text does not answer this'
  return [made('p', { css: 'headline', text: said }), marked(text, one.answer ? [{ ...one.answer, label: '' }] : [])]
}

function embedding(numbers) {
  const shown = numbers.map(x => x.toFixed(4)).join(' ')
  const copy = made('button', { type: 'button', text: 'Copy' })
  copy.addEventListener('click', () => navigator.clipboard?.writeText(JSON.stringify(numbers)))
  return [made('p', { text: `${numbers.length} numbers ` }, copy), made('p', { css: 'numbers', text: shown })]
}

function showTimes(timing, took) {
  const server = timing.tokenization + timing.queue + timing.inference
  const rows = [
    ['tokenization', timing.tokenization], ['queue', timing.queue], ['inference', timing.inference],
    ['the rest, network included', Math.max(0, took - server)], ['together', took],
  ]
  $('times').replaceChildren(...rows.flatMap(([name, ms]) => [
    made('dt', { text: name }), made('dd', { text: `${ms.toFixed(1)} ms` }),
  ]))
}

async function showTokens(name, text, one, policy, info) {
  $('tokens-row').hidden = info.inputs === 'pair'
  if (info.inputs === 'pair') return
  const [found] = await ask(`tokenize?model=${encodeURIComponent(name)}`, { inputs: [text] })
  const real = found.filter(token => !token.special).length
  const known = policy === 'head' || policy === 'tail' || !one.tokens_cut
  const from = policy === 'tail' ? real - one.tokens_read : 0
  $('tokens-note').textContent = known ? '' : 'which of them were cut is not shown for this way of cutting'
  let place = 0
  const items = found.map(token => {
    const number = token.special ? -1 : place++
    const cut = known && number >= 0 && (number < from || number >= from + one.tokens_read)
    return made('li', { css: token.special ? 'special' : cut ? 'cut' : '', text: token.text, title: `id ${token.id}` })
  })
  $('tokens').replaceChildren(...items.slice(0, TOKENS_SHOWN))
  $('more').hidden = items.length <= TOKENS_SHOWN
  $('more').onclick = () => {
    $('tokens').replaceChildren(...items)
    $('more').hidden = true
  }
}

async function filled(file) {
  if (!file) return
  const target = $('second-row').hidden ? $('first') : $('second')
  target.value = await file.text()
  sized()
  $('ask').focus()
}

$('form').addEventListener('submit', answered)
$('model').addEventListener('change', chosen)
$('key').addEventListener('change', open)
$('file').addEventListener('change', event => filled(event.target.files[0]))
document.addEventListener('keydown', event => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) $('form').requestSubmit()
})
for (const area of [$('first'), $('second')]) {
  area.addEventListener('input', sized)
  area.addEventListener('dragover', event => { event.preventDefault(); area.classList.add('over') })
  area.addEventListener('dragleave', () => area.classList.remove('over'))
  area.addEventListener('drop', async event => {
    area.classList.remove('over')
    const [file] = event.dataTransfer.files
    if (!file) return
    event.preventDefault()
    area.value = await file.text()
    sized()
  })
}
open()
