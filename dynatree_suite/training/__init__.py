"""Training of a draft for a model that exists (`dynatree train`).

`recipe.py` says what decides the weights, `answers.py` asks the model, `texts.py` keeps its answers and features,
`losses.py` compares the two, `optimize.py` is gradient descent with checkpoints, `draft.py` is the order of the stages,
`card.py` writes what is finished. `tools/pair_training` trains whole pairs by the same steps.
"""
