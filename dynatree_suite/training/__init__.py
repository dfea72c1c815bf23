"""Training of a pair: a target from a recipe and named texts, and a draft distilled from it (`dynatree train`).

`recipe.py` says what decides the weights, `optimize.py` is gradient descent with checkpoints, `card.py` writes what is
finished. For a pair, `corpus.py` turns texts into windows of tokens, `distil.py` has the losses and the target's own
text, `evaluate.py` what is measured, `pipeline.py` the order of the stages. For a draft of a model that exists,
`answers.py` asks it, `texts.py` keeps its answers and features, `losses.py` compares the two, `draft.py` is the order.
"""
